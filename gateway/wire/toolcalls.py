"""Repairs tool calls: adapters deliver them with known faults, which no client should see.

Streamed deltas leave in the form that every OpenAI client can assemble: dense indexes in order of
appearance; `id`, `type` and `name` once, in the first delta of a call; arguments that join to one
JSON object. Correct deltas are not changed; a fragment is held back only while it may still be an
empty placeholder."""

import json
import re
from collections.abc import Callable, Sequence
from typing import Any

from gateway.values import FieldDict, Fields
from gateway.wire.coerce import mapping_at, text_at

_MARK = re.compile(r"\\.|[\\\"{}\[\]]", re.DOTALL)
_EMPTY_SO_FAR = re.compile(r"\s*+\{?+\s*+\}?+\s*+")
_HELD_CHARS = 4096
"""Longest noise held back: it is read again with each fragment, and adapters send a few bytes."""


class _ObjectEnd:
    """Finds where the first JSON object of a text that comes in fragments ends."""

    def __init__(self) -> None:
        self._depth = 0
        self._quoted = False
        self._escaped = False

    def feed(self, text: str) -> int | None:
        """The offset in `text` just after the object; None when it does not end in `text`."""
        start = int(self._escaped)
        self._escaped = False
        for match in _MARK.finditer(text, start):
            mark = match.group()
            if mark == "\\":
                self._escaped = self._quoted
            elif mark == '"':
                self._quoted = not self._quoted
            elif len(mark) == 1 and not self._quoted:
                self._depth += 1 if mark in "{[" else -1
                if self._depth <= 0:
                    return match.end()
        return None


class ArgumentStream:
    """Passes on the arguments of one call, without the noise that some adapters add. Noise is an
    empty placeholder `{}` before the real object, and anything after it, such as the same object
    again or a final `{}`. Text that does not start as an object is not changed."""

    def __init__(self) -> None:
        self.sent = False
        self._restart()

    def _restart(self) -> None:
        self._end = _ObjectEnd()
        self._free = False
        self._held = ""
        self.complete = False

    def push(self, text: str) -> str:
        """The part of the arguments received so far that can be sent now; often exactly `text`."""
        out = ""
        while text:
            if self.complete:
                if self.sent or not text.lstrip().startswith("{"):
                    break
                self._restart()
            piece = text if self._free else self._one_object(text)
            out += self._release(piece)
            text = text[len(piece) :]
        return out

    def _one_object(self, text: str) -> str:
        end = None
        if self.sent or (self._held + text).strip():
            if not self.sent and not (self._held + text).lstrip().startswith("{"):
                self._free = True
                return text
            end = self._end.feed(text)
        self.complete = end is not None
        return text if end is None else text[:end]

    def _release(self, piece: str) -> str:
        self._held += piece
        if not self.sent and not self._free and self._is_noise():
            return ""
        self.sent = self.sent or bool(self._held)
        out = self._held
        self._held = ""
        return out

    def _is_noise(self) -> bool:
        return len(self._held) <= _HELD_CHARS and bool(_EMPTY_SO_FAR.fullmatch(self._held))

    def finish(self, *, cut: bool) -> str:
        """The text held back; a call without arguments gets `{}` unless a limit cut the reply."""
        out = self._held
        self._held = ""
        if self.sent or cut or out.strip() == "{":
            return out
        self.sent = True
        return out if self.complete else "{}"


def arguments_text(value: object) -> str:
    """Arguments as a string, as the API has them: null is empty, an object is serialised."""
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


NewId = Callable[[int], str]  # makes an id for a call without one, from its index


class _CallState:
    """One call under assembly."""

    def __init__(self, *, id: str | None, slot: object) -> None:
        self.index = -1
        self.id = id
        self.name: str | None = None
        self.slot = slot
        self.announced = False
        self.arguments = ArgumentStream()
        self.pending = ""
        self.extras: FieldDict = {}


class ToolCallStream:
    """Repairs the tool calls of one streamed choice. Faults repaired: index 0 for every call,
    missing or shifted indexes, ids and names repeated in later deltas (clients concatenate them),
    ids missing or shared by two calls, arguments as an object instead of a string or null, `{}`
    before or after the real arguments, the complete arguments sent twice, no arguments at all."""

    def __init__(self, new_id: NewId) -> None:
        self._new_id = new_id
        self._calls: list[_CallState] = []
        self._by_id: dict[str, _CallState] = {}
        self._by_slot: dict[int, _CallState] = {}
        self._ids: set[str] = set()
        self.announced = 0

    def push(self, deltas: Sequence[Any]) -> list[FieldDict]:
        """The deltas to send for the deltas received; may be empty. Never raises."""
        out: list[FieldDict] = []
        for delta in deltas:
            if isinstance(delta, dict):
                sent = dict(delta) if _is_custom(delta) else self._push_one(delta)
                if sent is not None:
                    out.append(sent)
        return out

    def finish(self, *, cut: bool = False) -> list[FieldDict]:
        """The deltas held back until the end; `cut`: a limit ended the reply. A call that never got
        a name cannot be executed and is left out."""
        out = []
        for call in self._calls:
            rest = call.arguments.finish(cut=cut) if call.announced else ""
            if rest:
                out.append({"index": call.index, "function": {"arguments": rest}})
        return out

    def _push_one(self, delta: Fields) -> FieldDict | None:
        function = mapping_at(delta, "function")
        id = text_at(delta, "id") or None
        name = text_at(function, "name") or None
        arguments = arguments_text(function.get("arguments"))
        call = self._locate(id, name, arguments, delta.get("index"))
        call.name = call.name or name
        if not call.announced:
            _collect_extras(call.extras, delta, function)
        ready = call.pending + call.arguments.push(arguments)
        call.pending = ready if call.name is None else ""
        if call.name is None:
            return None
        if call.announced:
            return {"index": call.index, "function": {"arguments": ready}} if ready else None
        return self._announce(call, ready)

    def _announce(self, call: _CallState, arguments: str) -> FieldDict:
        call.announced = True
        call.index = self.announced
        self.announced += 1
        call.id = _unused(call.id or self._new_id(call.index), self._ids)
        self._ids.add(call.id)
        extras = dict(call.extras)
        function = {"name": call.name, "arguments": arguments, **extras.pop("function", {})}
        delta = {"index": call.index, "id": call.id, "type": "function", "function": function}
        return {**delta, **extras}

    def _locate(self, id: str | None, name: str | None, arguments: str, slot: object) -> _CallState:
        slot = slot if isinstance(slot, int) else None
        if id is not None:
            return self._locate_by_id(id, name, slot)
        found = self._by_slot.get(slot) if slot is not None else self._last()
        if found is None:
            found = None if name else self._last()
        elif name and found.name and _opens_new_call(found, name, arguments):
            found = None
        return found or self._open(None, slot)

    def _locate_by_id(self, id: str, name: str | None, slot: int | None) -> _CallState:
        known = self._by_id.get(id)
        if known is None and slot is not None:
            waiting = self._by_slot.get(slot)
            if waiting is not None and waiting.id is None and not (waiting.name and name):
                known = waiting
                known.id = id
        elif known is not None and _another(known, name, slot=slot):
            known = None
        if known is None:
            return self._open(id, slot)
        self._by_id[id] = known
        if slot is not None:
            self._by_slot[slot] = known
        return known

    def _last(self) -> _CallState | None:
        return self._calls[-1] if self._calls else None

    def _open(self, id: str | None, slot: int | None) -> _CallState:
        call = _CallState(id=id, slot=slot)
        self._calls.append(call)
        if id is not None:
            self._by_id[id] = call
        if slot is not None:
            self._by_slot[slot] = call
        return call


def repair_message(message: FieldDict, new_id: NewId, *, cut: bool = False) -> int:
    """Repair the tool calls of a complete assistant message in place; returns their number. Each
    gets a unique id, a type, and arguments as a string; a call without a name is removed. `cut`: a
    limit ended the reply, so that missing arguments are not filled in."""
    calls = message.get("tool_calls")
    if not isinstance(calls, list):
        return 0
    taken: set[str] = set()
    kept: list[FieldDict] = []
    for call in calls:
        sound = _repair_call(call, new_id, taken, len(kept), cut=cut)
        if sound is not None:
            kept.append(sound)
    message["tool_calls"] = kept
    if not kept:
        del message["tool_calls"]
    return len(kept)


def _repair_call(
    call: Any, new_id: NewId, taken: set[str], index: int, *, cut: bool
) -> FieldDict | None:
    if not isinstance(call, dict):
        return None
    if _is_custom(call):
        return dict(call)
    function = mapping_at(call, "function")
    if not text_at(function, "name"):
        return None
    id = _unused(text_at(call, "id") or new_id(index), taken)
    taken.add(id)
    arguments = ArgumentStream()
    text = arguments.push(arguments_text(function.get("arguments"))) + arguments.finish(cut=cut)
    extras: FieldDict = {}
    _collect_extras(extras, call, function)
    inner = {"name": function["name"], "arguments": text, **extras.pop("function", {})}
    return {"id": id, "type": "function", "function": inner, **extras}


def finish_reason(reason: str | None, calls: int) -> str | None:
    """The finish reason that agrees with the number of tool calls in the choice. `stop` with calls
    becomes `tool_calls`, and `tool_calls` without any becomes `stop`; other reasons are not
    changed."""
    if calls and reason == "stop":
        return "tool_calls"
    if not calls and reason == "tool_calls":
        return "stop"
    return reason


def _is_custom(call: Fields) -> bool:
    """Whether this is a call of a custom tool, whose input is free text."""
    return call.get("type") == "custom" or "custom" in call


def _unused(id: str, taken: set[str]) -> str:
    candidate = id
    number = 1
    while candidate in taken:
        candidate = f"{id}_{number}"
        number = number + 1
    return candidate


def _another(known: _CallState, name: str | None, *, slot: object) -> bool:
    """Whether a delta with the id of `known` belongs to a second call that shares the id."""
    if name is None or known.name is None:
        return False
    return name != known.name or (known.arguments.complete and slot != known.slot)


def _opens_new_call(found: _CallState, name: str, arguments: str) -> bool:
    """Whether a delta without id opens a new call in the slot of `found`."""
    again = found.arguments.complete and arguments.lstrip().startswith("{")
    return name != found.name or again


def _collect_extras(extras: FieldDict, delta: Fields, function: Fields) -> None:
    extras.update(
        (key, value)
        for key, value in delta.items()
        if key not in {"index", "id", "type", "function"} and value is not None
    )
    inner = {
        key: value
        for key, value in function.items()
        if key not in {"name", "arguments"} and value is not None
    }
    if inner:
        extras.setdefault("function", {}).update(inner)
