"""Placement of guidance: edits of the client's messages, and the replay of earlier ones.

A prompt cache keeps the longest unchanged prefix of a request. So guidance of one request is put
into every later one of the run, the same bytes at the same place, and new guidance goes to the end
of the newest message, never into the head of a prompt that was already sent. The directive is valid
for one call: it is a separate block, so that omitting it moves nothing else.

A system prompt outside the messages is put in front as `{"role": "system", "content": ...}`.
Text is added only to messages of a kind and form that is known to take it, and as a late system
message or with a cache marker only where the provider is known to take that (`GuidanceTarget`)."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from typing import Any

from msgspec.structs import replace

from gateway.core.edits import (
    AppendToResult,
    Edit,
    InsertMessage,
    InsertSystem,
    Message,
    MessageRole,
    SystemAppend,
)
from gateway.core.guidance_choice import STANDING, Decided
from gateway.core.guidance_settings import InjectionSettings
from gateway.core.guidance_state import KEPT_THERE, GuidanceState, Injection, Place
from gateway.core.guidance_text import ADVISORY, FRAME_OPEN, frame
from gateway.core.pattern import Tier
from gateway.values import Value

# The messages of a request, of which those that are known from before are parsed on access.
Messages = Sequence[Message]
_OPENING = 3  # messages that are read first: a system prompt, a task, and the first answer
_NEWEST = 2  # messages that new guidance is mostly placed at
_SYSTEM_ROLES = ("system", "developer")
_TEXT_PARTS = ("text", "input_text")
# Items of the Responses API whose `output` is a text or a list of parts, as a message's content. No
# set: a client's type may be a list or an object, for which there is no hash.
TEXT_RESULTS = ("function_call_output", "custom_tool_call_output")
# Items that a client sends after a call of a tool. Source: OpenAI's API reference, "Create a model
# response", `input`.
_RESULT_ITEMS = frozenset(
    {"local_shell_call_output", "shell_call_output", "apply_patch_call_output"}
    | {"computer_call_output", "mcp_approval_response", *TEXT_RESULTS}
)

MAX_BREAKPOINTS = 4  # per request. Source: Anthropic's API reference, prompt caching
_AZURE_HOSTS = (".openai.azure.com", ".cognitiveservices.azure.com")


class GuidanceTarget(Value):
    """The model endpoint a request goes to. With late system messages and breakpoints, a late
    system message is placed alone after a user message, and before an assistant message or at
    the end. Source: Anthropic's documentation, "Mid-conversation system messages"."""

    late_system: bool = False  # it takes system messages after the conversation has begun
    # its prompt cache works with markers in the content, four at most; its system prompt is one
    breakpoints: bool = False
    # places where requests with guidance were refused, and accepted without it
    closed: frozenset[Place] = frozenset()


def target_for(provider: str, model: str, host: str) -> GuidanceTarget:
    """The traits of a provider as LiteLLM names it (`openai`, `azure`, `anthropic`, ...). `host`:
    of the deployment's URL, "" for the provider's. Many servers with OpenAI's API refuse a late
    system message, so only OpenAI's and Azure OpenAI's hosts count. Source: the providers' API
    references; chat templates of open models."""
    name = provider.lower()
    at = host.lower()
    if name == "anthropic" or "claude" in model.lower() or at.endswith("anthropic.com"):
        return GuidanceTarget(breakpoints=True)
    openai = at == "api.openai.com" or (name == "openai" and not at)
    azure = at.endswith(_AZURE_HOSTS) or (name == "azure" and not at)
    return GuidanceTarget(late_system=openai or azure)


class Placed(Value):
    """The edits of one request, and the run's bookkeeping after it."""

    edits: tuple[Edit, ...]  # in the order of their positions in the request
    state: GuidanceState  # the bookkeeping with the new blocks
    added: tuple[Injection, ...] = ()  # the blocks that are new with this call
    directive: Injection | None = None  # the block for this call only; None without one


def place(
    messages: Messages,
    decided: Decided,
    *,
    target: GuidanceTarget,
    settings: InjectionSettings,
    tools: Messages = (),
    begun: bool = False,
) -> Placed:
    """The edits that place a call's guidance, old and new. Never raises for messages of any shape.
    `tools` are only looked at to count the client's cache markers. `begun`: the server keeps
    messages that come before these."""
    opening = messages[:_OPENING]
    newest = messages[-_NEWEST:]
    size = len(messages)
    leading = list(takewhile(_is_system, opening))
    if len(leading) == _OPENING:
        leading = list(takewhile(_is_system, messages))
    body = _Body(messages, size, newest, leading=leading, target=target, settings=settings)
    replayed = decided.state.injections
    if settings.lifetime == "call":  # only those of this step are sent again, in a retry
        replayed = tuple(block for block in replayed if block.step >= decided.step)
    if begun:
        replayed = tuple([_kept_there(block, decided.step) for block in replayed])
    tail = None
    if settings.placement != "system":
        tail = body.tail()
    sent_before = begun or body.has_answer(opening)
    # A head that no server has seen takes guidance, as does a request without any other place.
    head: Injection | None = Injection(step=decided.step, place="system", offset=0, text="")
    if "system" in target.closed or (sent_before and settings.placement != "system"):
        head = None
    added = _new_injections(decided, replayed, settings, head=head, tail=tail)
    directive = None
    if decided.directive and (where := tail or head):
        preface = not any(ADVISORY in block.text for block in (*replayed, *added))
        text = frame([decided.directive], preface=preface)
        directive = replace(where, step=decided.step, text=text)
    # The directive goes before all of this step's blocks, those of a retried call included.
    earlier = [block for block in replayed if block.step < decided.step]
    current = (*replayed[len(earlier) :], *added)
    present = _present(leading)
    system = []
    for block in (*earlier, *([directive] if directive else []), *current):
        if block.place != "system":
            body.put(block)
        elif block.text not in present and "system" not in target.closed:
            system.append(block.text)
    edits = [*_system_edits(messages, leading, system, target=target, tools=tools), *body.edits()]
    state = decided.state
    if (kept := (*replayed, *added)) != state.injections:
        state = replace(state, injections=kept)
    return Placed(edits=tuple(edits), state=state, added=added, directive=directive)


def _present(leading: Messages) -> str:
    """The guidance already in the client's system text: some providers return the instructions they
    were given, and some clients send those back. Each call would duplicate them."""
    contents = [message.get("content") for message in leading]
    parts = [part for c in contents for part in (c if isinstance(c, list) else [{"text": c}])]
    texts = [part.get("text") for part in parts if isinstance(part, Mapping)]
    return "\n".join(text for text in texts if isinstance(text, str) and FRAME_OPEN in text)


def _new_injections(
    decided: Decided,
    replayed: Sequence[Injection],
    settings: InjectionSettings,
    *,
    head: Injection | None,
    tail: Injection | None,
) -> tuple[Injection, ...]:
    """The blocks for this call's items, at the places that there are. One block of a run has the
    preamble."""
    at_head = []
    at_tail = []
    for item in decided.items:
        # It holds for all of a run, and not for its newest step.
        pinned = item.tier is Tier.E3 or item.source == STANDING
        if pinned and any(item.text in block.text for block in replayed):
            continue  # the conversation's earlier run has brought it
        if head is not None and (tail is None or (pinned and settings.placement != "tail")):
            at_head.append(item.text)
        else:
            at_tail.append(item.text)
    prefaced = any(ADVISORY in block.text for block in replayed)
    added = []
    for where, texts in ((head, at_head), (tail, at_tail)):
        if where is not None and texts:
            text = frame(texts, preface=not prefaced)
            prefaced = True
            added.append(replace(where, step=decided.step, text=text))
    return tuple(added)


def _kept_there(block: Injection, step: int) -> Injection:
    """The block; one of an earlier step is with the server, which has stored it."""
    kept = block.place != "system" and block.step < step
    return replace(block, offset=KEPT_THERE) if kept else block


class _Body:
    """The messages of a request while blocks are put between and into them. `size`: their number;
    `newest`: the last ones; `leading`: the leading system messages."""

    def __init__(
        self,
        messages: Messages,
        size: int,
        newest: Sequence[Message],
        *,
        leading: Sequence[Message],
        target: GuidanceTarget,
        settings: InjectionSettings,
    ):
        self._messages = messages
        self._size = size
        self._newest = newest
        self._lead = len(leading)
        self._target = target
        by_choice = settings.placement == "tail" and not target.breakpoints
        self._late = settings.placement != "system" and (target.late_system or by_choice)
        developer = leading and leading[0].get("role") == "developer"
        self._late_role: MessageRole = "developer" if developer else "system"
        self._texts: dict[tuple[int, MessageRole | None], list[str]] = {}

    def has_answer(self, opening: Messages) -> bool:
        """Whether the agent has answered in these messages, of which `opening` are the first."""
        if any(_role(message) == "assistant" for message in opening[self._lead :]):
            return True
        later = range(max(len(opening), self._lead), self._size)
        return any(_role(self._at(at)) == "assistant" for at in later)

    def tail(self) -> Injection | None:
        """Returns an empty block after the newest message that takes guidance; None if no
        message does. Nothing may follow a prefill or calls without answers; then the message
        before those takes it."""
        end = self._size
        place: Place = "message"
        if not self._takes_message(end):
            place = "result"
            while end > self._lead and not self._is_heard(end - 1):
                end -= 1
        block = Injection(step=0, place=place, offset=end - self._lead, text="")
        return block if self._form(block) is not None else None

    def put(self, block: Injection) -> None:
        """Put a block at its place again. One whose place is gone is not sent: the client may have
        rewritten its history, and in front the block would change all of the prompt."""
        form = self._form(block)
        if form is not None:
            self._texts.setdefault(form, []).append(block.text)

    def edits(self) -> list[Edit]:
        """The edits for all blocks, in order of position."""
        edits: list[Edit] = []
        # The end of a message comes before what follows it, at the same position.
        for position, role in sorted(self._texts, key=lambda form: (form[0], form[1] is not None)):
            texts = self._texts[position, role]
            if role is None:
                edits.append(AppendToResult(index=position - 1, texts=tuple(texts)))
                continue
            # Two turns of a user, or two late messages where there are breakpoints, are refused.
            if role == "user" or self._target.breakpoints:
                texts = ["\n\n".join(texts)]
            edits += [InsertMessage(position=position, role=role, text=text) for text in texts]
        return edits

    def _form(self, block: Injection) -> tuple[int, MessageRole | None] | None:
        """The position behind a block's message, and the role of the message that is made for it,
        None for the end of the client's own; no form where neither is possible. A run may have been
        routed to a target that takes another form than the one before."""
        position = self._lead + block.offset
        if not self._lead < position <= self._size:
            return None
        if block.place == "message" and self._takes_message(position):
            return position, self._late_role
        if not self._is_heard(position - 1):
            return None
        if takes_text(self._at(position - 1)):
            return None if "result" in self._target.closed else (position, None)
        if "message" not in self._target.closed and self._role_at(position) != "tool":
            return position, "user"
        return None

    def _takes_message(self, position: int) -> bool:
        """True if a late system message may stand behind `position` messages."""
        if not self._late or "message" in self._target.closed or position <= self._lead:
            return False
        before = self._at(position - 1)
        after = self._role_at(position)
        if self._target.breakpoints and (_is_system(before) or after not in ("assistant", None)):
            return False
        return _role(before) != "assistant" and after != "tool"

    def _is_heard(self, index: int) -> bool:
        """True for a message of the user, or with the results of tools."""
        message = self._at(index)
        return _role(message) != "assistant" and not _is_system(message)

    def _role_at(self, index: int) -> str | None:
        return _role(self._at(index)) if index < self._size else None

    def _at(self, index: int) -> Message:
        behind = index - self._size
        return self._newest[behind] if behind >= -_NEWEST else self._messages[index]


def takes_text(message: Message) -> bool:
    """True if a text can be added to the end of a message or of a tool's result."""
    kind = message.get("type")
    if kind in TEXT_RESULTS:
        held = message.get("output")
    elif kind in (None, "message"):
        held = message.get("content")
    else:
        return False
    return held is None or isinstance(held, (str, list))


def _system_edits(
    messages: Messages,
    leading: Messages,
    texts: Sequence[str],
    target: GuidanceTarget,
    tools: Messages,
) -> list[Edit]:
    if not texts:
        return []
    # With markers for the prompt's cache, the system prompt is always the first message.
    own = leading[:1] if target.breakpoints else leading
    index = next((at for at, each in enumerate(own) if _appendable(each)), None)
    if index is None:
        return [InsertSystem(texts=tuple(texts))]
    marker = system_marker(messages, tools) if target.breakpoints else None
    return [SystemAppend(index=index, texts=tuple(texts), breakpoint=marker)]


def _appendable(message: Message) -> bool:
    """True for a system message with content that text can be added to."""
    content = message.get("content")
    if message.get("type") not in (None, "message"):
        return False
    if isinstance(content, list):
        last = content[-1] if content else {"type": "text"}
        return isinstance(last, Mapping) and last.get("type") in _TEXT_PARTS
    # Without content it is a kind of message that has none, or the place of a system prompt.
    return isinstance(content, str) or (content is None and message.keys() == {"role", "content"})


def _is_system(message: Message) -> bool:
    return message.get("role") in _SYSTEM_ROLES


def _role(message: Message) -> str:
    """`assistant`, `tool` or `user`, also for the typed items of the Responses API; unknown ones
    count as the assistant's, and nothing is put behind them."""
    role = message.get("role")
    kind = message.get("type")
    if kind not in (None, "message"):
        return "tool" if isinstance(kind, str) and kind in _RESULT_ITEMS else "assistant"
    if role in ("tool", "function"):
        return "tool"
    return "user" if role in ("user", *_SYSTEM_ROLES) else "assistant"


def system_marker(messages: Sequence[Message], others: Sequence[Message]) -> dict[str, str] | None:
    """Returns the `cache_control` to put at the end of the client's system prompt, the first of
    `messages`. None if the prompt is empty or has a marker, if the client sets no marker
    anywhere, or if it has used all four."""
    system = messages[0]
    content = system.get("content")
    if isinstance(content, list) and content:
        if not isinstance(content[-1], Mapping) or "cache_control" in content[-1]:
            return None
    elif isinstance(content, str) and isinstance(own := system.get("cache_control"), Mapping):
        return {str(key): str(value) for key, value in own.items()} if content else None
    markers = [m for each in (*messages, *others) for m in _markers(each)]
    if not content or not 0 < len(markers) < MAX_BREAKPOINTS:
        return None  # a client that sets no marks pays for none
    # A longer-lived marker may not follow a shorter-lived one: ours lives as long as the longest.
    long_lived = any(isinstance(m, Mapping) and m.get("ttl") == "1h" for m in markers)
    return {"type": "ephemeral", "ttl": "1h"} if long_lived else {"type": "ephemeral"}


def _markers(value: Any) -> Iterator[Any]:
    """The markers in a message or tool, those of the blocks in a tool's result included."""
    for each in value if isinstance(value, (list, tuple)) else (value,):
        if isinstance(each, Mapping):
            if each.get("cache_control"):
                yield each["cache_control"]
            yield from _markers(each.get("content"))
