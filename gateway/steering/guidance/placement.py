"""Placement of guidance: edits of the client's messages, and the replay of earlier ones.

A prompt cache keeps the longest unchanged prefix of a request. So guidance of one request is put
into every later one of the run, the same bytes at the same place, and new guidance goes behind it.
The directive is valid for one call: it is a separate block, so that omitting it moves nothing else.

A system prompt outside the messages is put in front as `{"role": "system", "content": ...}`.
Text is added only to messages of a kind and form that is known to take it."""

from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from gateway.steering.guidance.decide import STANDING, Decided
from gateway.steering.guidance.edits import (
    AppendToResult,
    Edit,
    InsertMessage,
    InsertSystem,
    Message,
    SystemAppend,
)
from gateway.steering.guidance.pattern import Tier
from gateway.steering.guidance.render import frame
from gateway.steering.guidance.settings import InjectionSettings
from gateway.steering.guidance.state import GuidanceState, Injection, Place
from gateway.steering.guidance.target import GuidanceTarget, system_marker
from gateway.steering.transcript.content import FRAME_OPEN

Messages = Sequence[Message]
_SYSTEM_ROLES = ("system", "developer")
_TEXT_PARTS = ("text", "input_text")
# Items of the Responses API that a client sends after a call of a tool. Source: OpenAI's API
# reference, "Create a model response", `input`.
_RESULT_ITEMS = frozenset(
    {"function_call_output", "custom_tool_call_output", "local_shell_call_output"}
    | {"shell_call_output", "apply_patch_call_output", "computer_call_output"}
    | {"mcp_approval_response"}
)


class Placed(Struct, frozen=True, kw_only=True):
    """The edits of one request, in order of position, and the run's bookkeeping after it. `added`:
    the blocks that are new with this call; `directive`: the one for this call only."""

    edits: tuple[Edit, ...]
    state: GuidanceState
    added: tuple[Injection, ...] = ()
    directive: Injection | None = None


def place(
    messages: Messages,
    decided: Decided,
    *,
    target: GuidanceTarget,
    settings: InjectionSettings,
    tools: Messages = (),
) -> Placed:
    """The edits that place a call's guidance, old and new. Never raises for messages of any shape.
    `tools` are only looked at to count the client's cache markers."""
    leading = list(takewhile(_is_system, messages))
    lead, offset = len(leading), len(messages) - len(leading)
    last = messages[-1] if offset else None
    late_ok = _late_allowed(target, settings) and "message" not in target.closed
    # Nothing may follow an assistant message (a prefill, or calls without answers).
    tail_ok = late_ok and last is not None and _role(last) != "assistant"
    tail_ok = tail_ok and not (target.breakpoints and last is not None and _is_system(last))
    replayed = decided.state.injections
    if settings.lifetime == "call":  # only those of this step are sent again, in a retry
        replayed = tuple(block for block in replayed if block.step >= decided.step)
    result_ok = settings.placement != "system" and "result" not in target.closed
    result_ok = result_ok and last is not None and _is_result(last)
    added = _new_injections(decided, offset, settings, tail_ok=tail_ok, result_ok=result_ok)
    directive = None
    if decided.directive:
        where: Place = "message" if tail_ok else "system"
        text = frame([decided.directive])
        directive = Injection(step=decided.step, place=where, offset=offset, text=text)
    # The directive goes before all of this step's blocks, those of a retried call included.
    earlier = [block for block in replayed if block.step < decided.step]
    current = (*replayed[len(earlier) :], *added)
    present = _present(leading)
    system: list[str] = []
    between: list[Injection] = []
    behind: list[Injection] = []
    for block in (*earlier, *([directive] if directive else []), *current):
        if block.place != "system" and _fits(block, messages, lead, target, settings):
            (between if block.place == "message" else behind).append(block)
        elif block.text not in present and "system" not in target.closed:
            system.append(block.text)
    if "system" in target.closed:  # a block without another place is not given
        added = tuple(block for block in added if block in between or block in behind)
    edits = _system_edits(messages, leading, system, target, tools)
    edits += _message_edits(leading, between, target)
    edits += [AppendToResult(index=lead + each.offset - 1, text=each.text) for each in behind]
    kept, state = (*replayed, *added), decided.state
    if kept != state.injections:
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
    decided: Decided, offset: int, settings: InjectionSettings, *, tail_ok: bool, result_ok: bool
) -> tuple[Injection, ...]:
    blocks: dict[Place, list[str]] = {"system": [], "message": [], "result": []}
    for item in decided.items:
        pinned = item.tier is Tier.E3 or item.source == STANDING
        pinned = pinned and settings.placement != "tail"
        where: Place = "message" if tail_ok and not pinned else "system"
        # A lesson belongs to the failing result: into it, where nothing may come behind it.
        if item.match and item.match.pattern.lesson and result_ok and not tail_ok:
            where = "result"
        blocks[where].append(item.text)
    return tuple(
        Injection(step=decided.step, place=at, offset=0 if at == "system" else offset, text=text)
        for at, texts in blocks.items()
        if texts and (text := frame(texts))
    )


def _late_allowed(target: GuidanceTarget, settings: InjectionSettings) -> bool:
    at_tail = settings.placement == "tail" and not target.breakpoints
    return settings.placement != "system" and (target.late_system or at_tail)


def _is_result(message: Message) -> bool:
    """True if a message holds the results of tools, in a form that text can be added to."""
    role, content = message.get("role"), message.get("content")
    if message.get("type") is not None:
        return False
    if role in ("tool", "function"):
        return isinstance(content, str) or _takes_part(content)
    blocks = content if role == "user" and isinstance(content, list) else ()
    return any(isinstance(b, Mapping) and b.get("type") == "tool_result" for b in blocks)


def _takes_part(content: Any) -> bool:
    """True if a list of parts ends with a text, so that another one may follow."""
    last = content[-1] if isinstance(content, list) and content else None
    return isinstance(last, Mapping) and last.get("type") in _TEXT_PARTS


def _fits(
    block: Injection,
    messages: Messages,
    lead: int,
    target: GuidanceTarget,
    settings: InjectionSettings,
) -> bool:
    """True if a block can go to its place again; otherwise it goes to the front. A run may have
    been routed to a target that takes none, or its client may have rewritten the history: between a
    call and its answer a block would make the request invalid."""
    position = lead + block.offset
    if block.place in target.closed or not lead < position <= len(messages):
        return False
    before = messages[position - 1]
    if block.place == "result" or not _late_allowed(target, settings):
        return block.place == "result" and _is_result(before)
    after = _role(messages[position]) if position < len(messages) else None
    if target.breakpoints and (_is_system(before) or after not in ("assistant", None)):
        return False
    return _role(before) != "assistant" and after != "tool"


def _message_edits(
    leading: Messages, items: Sequence[Injection], target: GuidanceTarget
) -> list[Edit]:
    lead = len(leading)
    developer = lead and leading[0].get("role") == "developer"
    texts: dict[int, list[str]] = {}
    for item in sorted(items, key=lambda item: item.offset):
        texts.setdefault(lead + item.offset, []).append(item.text)
    return [
        InsertMessage(position=at, role="developer" if developer else "system", text=text)
        for at, own in texts.items()
        # Where the API has breakpoints, a late system message must be a single one.
        for text in (["\n\n".join(own)] if target.breakpoints else own)
    ]


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
        return not content or _takes_part(content)
    # Without content it is a kind of message that has none, or the place of a system prompt.
    return isinstance(content, str) or (content is None and message.keys() == {"role", "content"})


def _is_system(message: Message) -> bool:
    return message.get("role") in _SYSTEM_ROLES


def _role(message: Message) -> str:
    """`assistant`, `tool` or `user`, also for the typed items of the Responses API; unknown ones
    count as the assistant's, and nothing is put behind them."""
    role, kind = message.get("role"), message.get("type")
    if kind not in (None, "message"):
        return "tool" if isinstance(kind, str) and kind in _RESULT_ITEMS else "assistant"
    if role in ("tool", "function"):
        return "tool"
    return "user" if role in ("user", *_SYSTEM_ROLES) else "assistant"
