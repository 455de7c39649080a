"""Placement of guidance: edits of the client's messages, and the replay of earlier ones.

A prompt cache keeps the longest unchanged prefix of a request. So what was put into one request is
put into every later one of the run again, the same bytes at the same place, and new guidance goes
behind it. The one exception is the SKIP directive, which is valid for one call: it is a separate
block, so that leaving it out moves nothing else.

Messages are given as the client sent them, as mappings. For dialects with the system prompt outside
the messages the caller puts it in front as `{"role": "system", "content": ...}`.

Text is added only to messages whose kind is known to take it, in a form that takes it; clients send
new kinds of items before their providers document them. Others are passed over.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from gateway.steering.guidance.decide import Decided, Item
from gateway.steering.guidance.edits import (
    AppendToResult,
    Edit,
    InsertMessage,
    InsertSystem,
    Message,
    SystemAppend,
    SystemRole,
)
from gateway.steering.guidance.pattern import Tier
from gateway.steering.guidance.render import frame
from gateway.steering.guidance.settings import InjectionSettings
from gateway.steering.guidance.state import GuidanceState, Injection, Place
from gateway.steering.guidance.target import GuidanceTarget, system_marker
from gateway.steering.guidance.texts import skip_directive
from gateway.steering.transcript.content import FRAME_OPEN

_SYSTEM_ROLES = ("system", "developer")
_TEXT_PARTS = ("text", "input_text")
_RESULT_ITEMS = frozenset(
    {"function_call_output", "custom_tool_call_output", "local_shell_call_output"}
    | {"shell_call_output", "apply_patch_call_output", "computer_call_output"}
    | {"mcp_approval_response"}
)
"""Items of the Responses API that a client sends after a call of a tool. Source: OpenAI's API
reference, "Create a model response", `input`."""


class Placed(Struct, frozen=True, kw_only=True):
    """The edits of one request, in order of position, and the run's bookkeeping after it.

    `added` = the blocks that are new with this call, `directive` = the one that holds for this call
    only.
    """

    edits: tuple[Edit, ...]
    state: GuidanceState
    added: tuple[Injection, ...] = ()
    directive: Injection | None = None


def place(
    messages: Sequence[Message],
    decided: Decided,
    *,
    target: GuidanceTarget,
    settings: InjectionSettings,
    tools: Sequence[Message] = (),
) -> Placed:
    """The edits that place a call's guidance, old and new. Never raises for messages of any shape.

    `tools` are only looked at to count the client's cache markers.
    """
    leading = _leading(messages)
    lead, count = len(leading), len(messages)
    last = messages[-1] if count else None
    late_ok = _late_allowed(target, settings) and "message" not in target.closed
    # Nothing may follow an assistant message (a prefill, or calls without answers).
    tail_ok = late_ok and last is not None and lead < count and _role(last) != "assistant"
    tail_ok = tail_ok and not (target.breakpoints and last is not None and _is_system(last))
    offset = count - lead
    replayed = _remembered(decided, settings)
    result_ok = (
        settings.placement != "system"
        and "result" not in target.closed
        and last is not None
        and _is_result(last)
    )
    added = _new_injections(decided, tail_ok, offset, settings, result_ok=result_ok)
    present = _present(leading)
    system: list[str] = []
    between: list[Injection] = []
    behind: list[Injection] = []
    directive = _directive(decided, tail_ok, offset)
    # The directive goes before all of this step's blocks, those of a retried call included.
    earlier = [block for block in replayed if block.step < decided.step]
    current = (*replayed[len(earlier) :], *added)
    for block in (*earlier, *([directive] if directive else []), *current):
        if block.place == "message" and _fits(block, messages, lead, target, settings):
            between.append(block)
        elif block.place == "result" and _has_result(block, messages, lead, target):
            behind.append(block)
        elif block.text not in present and "system" not in target.closed:
            system.append(block.text)
    if "system" in target.closed:  # what has no other place is not given
        added = tuple(block for block in added if block in between or block in behind)
    edits = _system_edits(messages, leading, system, target, tools)
    edits += _message_edits(leading, between, target)
    edits += [AppendToResult(index=lead + each.offset - 1, text=each.text) for each in behind]
    kept = (*replayed, *added)
    state = decided.state
    if kept != state.injections:
        state = replace(state, injections=kept)
    return Placed(edits=tuple(edits), state=state, added=added, directive=directive)


def _present(leading: Sequence[Message]) -> str:
    """The guidance already in the client's system text: some providers return the instructions they
    were given, and some clients send those back. Each call would duplicate them."""
    texts = [text for message in leading for text in _texts(message.get("content"))]
    return "\n".join(text for text in texts if FRAME_OPEN in text)


def _texts(content: Any) -> list[str]:
    parts = content if isinstance(content, list) else [{"text": content}]
    texts = (part.get("text") for part in parts if isinstance(part, Mapping))
    return [text for text in texts if isinstance(text, str)]


def _directive(decided: Decided, tail_ok: bool, offset: int) -> Injection | None:
    if not decided.directive:
        return None
    where: Place = "message" if tail_ok else "system"
    text = frame([skip_directive(repairing=decided.repairing, spent=decided.spent)])
    return Injection(step=decided.step, place=where, offset=offset, text=text)


def _remembered(decided: Decided, settings: InjectionSettings) -> tuple[Injection, ...]:
    """Injections that are sent again; with lifetime `call` only those of this step (a retry)."""
    if settings.lifetime == "run":
        return decided.state.injections
    return tuple(item for item in decided.state.injections if item.step >= decided.step)


def _new_injections(
    decided: Decided, tail_ok: bool, offset: int, settings: InjectionSettings, *, result_ok: bool
) -> tuple[Injection, ...]:
    if not decided.items:
        return ()
    # A lesson belongs to the failing result: into it, where nothing may come behind it.
    inside = [item for item in decided.items if item.is_lesson] if not tail_ok and result_ok else []
    others = [item for item in decided.items if item not in inside]
    pinned, late = _split(others, tail_ok, settings)

    def block(items: Sequence[Item], where: Place) -> Injection:
        text = frame([item.text for item in items])
        at = 0 if where == "system" else offset
        return Injection(step=decided.step, place=where, offset=at, text=text)

    placed: list[tuple[Sequence[Item], Place]] = [(pinned, "system"), (late, "message")]
    placed.append((inside, "result"))
    return tuple(block(items, where) for items, where in placed if items)


def _split(
    items: Sequence[Item], tail_ok: bool, settings: InjectionSettings
) -> tuple[list[Item], list[Item]]:
    """The items for the system message and those for the tail."""
    if not tail_ok:
        return list(items), []
    if settings.placement == "tail":
        return [], list(items)
    universal = [item for item in items if item.tier is Tier.E3]
    return universal, [item for item in items if item.tier is not Tier.E3]


def _late_allowed(target: GuidanceTarget, settings: InjectionSettings) -> bool:
    if settings.placement == "system" or target.late_system:
        return settings.placement != "system"
    return settings.placement == "tail" and not target.breakpoints


def _is_result(message: Message) -> bool:
    """Whether a message holds the results of tools, in a form that text can be added to."""
    role, content = message.get("role"), message.get("content")
    if message.get("type") is not None:
        return False
    if role in ("tool", "function"):
        return isinstance(content, str) or _takes_part(content)
    blocks = content if role == "user" and isinstance(content, list) else ()
    return any(isinstance(b, Mapping) and b.get("type") == "tool_result" for b in blocks)


def _takes_part(content: Any) -> bool:
    """Whether a list of parts ends with a text, so that another one may follow."""
    last = content[-1] if isinstance(content, list) and content else None
    return isinstance(last, Mapping) and last.get("type") in _TEXT_PARTS


def _has_result(
    block: Injection, messages: Sequence[Message], lead: int, target: GuidanceTarget
) -> bool:
    """Whether the result that a block was added to is still there, and may be added to."""
    position = lead + block.offset
    if "result" in target.closed or not lead < position <= len(messages):
        return False
    return _is_result(messages[position - 1])


def _fits(
    block: Injection,
    messages: Sequence[Message],
    lead: int,
    target: GuidanceTarget,
    settings: InjectionSettings,
) -> bool:
    """Whether a block can be placed between messages there; otherwise it goes to the front.

    A run may have been routed to a target that takes none, or its client may have rewritten the
    history: between a call and its answer a block would make the request invalid.
    """
    position = lead + block.offset
    if "message" in target.closed or not _late_allowed(target, settings):
        return False
    if not lead < position <= len(messages):
        return False
    before, after = messages[position - 1], None
    if position < len(messages):
        after = _role(messages[position])
    if target.breakpoints and (_is_system(before) or after not in ("assistant", None)):
        return False
    return _role(before) != "assistant" and after != "tool"


def _message_edits(
    leading: Sequence[Message], items: Sequence[Injection], target: GuidanceTarget
) -> list[Edit]:
    lead = len(leading)
    role: SystemRole = "system"
    if leading and leading[0].get("role") == "developer":
        role = "developer"
    texts: dict[int, list[str]] = {}
    for item in sorted(items, key=lambda item: item.offset):
        texts.setdefault(lead + item.offset, []).append(item.text)
    # Where the API has breakpoints, a late system message must be a single one.
    apart = {at: ["\n\n".join(own)] if target.breakpoints else own for at, own in texts.items()}
    return [
        InsertMessage(position=at, role=role, text=text)
        for at, own in apart.items()
        for text in own
    ]


def _system_edits(
    messages: Sequence[Message],
    leading: Sequence[Message],
    texts: Sequence[str],
    target: GuidanceTarget,
    tools: Sequence[Message],
) -> list[Edit]:
    if not texts:
        return []
    # With markers for the prompt's cache, the system prompt is always the first message.
    index = 0 if target.breakpoints else _appendable_index(leading)
    if index is None or not leading or not _appendable(leading[index]):
        return [InsertSystem(texts=tuple(texts))]
    marker = system_marker(messages, tools) if target.breakpoints else None
    return [SystemAppend(index=index, texts=tuple(texts), breakpoint=marker)]


def _appendable_index(leading: Sequence[Message]) -> int | None:
    """The first of the leading messages that text can be added to."""
    return next((at for at, each in enumerate(leading) if _appendable(each)), None)


def _appendable(message: Message) -> bool:
    """Whether it is a system message with content that text can be added to."""
    content = message.get("content")
    if message.get("type") not in (None, "message"):
        return False
    if isinstance(content, list):
        return not content or _takes_part(content)
    # Without content it is a kind of message that has none, or the place of a system prompt.
    return isinstance(content, str) or (content is None and message.keys() == {"role", "content"})


def _leading(messages: Sequence[Message]) -> list[Message]:
    """The system or developer messages before the first other one."""
    found = []
    for message in messages:
        if message.get("role") not in _SYSTEM_ROLES:
            break
        found.append(message)
    return found


def _is_system(message: Message) -> bool:
    return message.get("role") in _SYSTEM_ROLES


def _role(message: Message) -> str:
    """`assistant`, `tool` or `user`, also for the typed items of the Responses API.

    What is not known counts as the assistant's: nothing is put behind it.
    """
    role, kind = message.get("role"), message.get("type")
    if kind not in (None, "message"):
        return "tool" if isinstance(kind, str) and kind in _RESULT_ITEMS else "assistant"
    if role in ("tool", "function"):
        return "tool"
    return "user" if role in ("user", *_SYSTEM_ROLES) else "assistant"
