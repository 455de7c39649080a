"""Tool calls of LiteLLM's answers, in the form that every OpenAI client can assemble."""

import json
from collections.abc import Callable, Sequence
from typing import Any

from msgspec import Struct

from gateway.values import FieldDict, Fields
from gateway.wire.coerce import mapping_at, objects, text_at

NewId = Callable[[int], str]  # makes an id for a call without one, from its index


def arguments_text(value: object) -> str:
    """Arguments as a string, as the API has them: null is empty, an object is serialised."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False)


class _Call(Struct):
    """One call of a stream."""

    index: int  # in order of appearance
    id: str  # as it was announced
    has_arguments: bool = False  # some have come


class ToolCallStream:
    """The tool calls of one streamed choice: dense indexes in order of appearance; `id`, `type` and
    `name` once, in the first delta of a call, because clients concatenate them; arguments as a
    string, `{}` for none. Adapters count from 1, use one index for all calls, leave ids out or
    repeat them."""

    def __init__(self, new_id: NewId):
        self._new_id = new_id
        self._newest: dict[object, _Call] = {}  # by the adapter's index
        self._calls: list[_Call] = []

    @property
    def announced(self) -> int:
        """The number of calls so far."""
        return len(self._calls)

    def push(self, deltas: Sequence[Any]) -> list[FieldDict]:
        """The deltas to send for the deltas received; may be empty. Never raises."""
        sent = [self._push_one(delta) for delta in deltas if isinstance(delta, dict)]
        return [delta for delta in sent if delta is not None]

    def finish(self, *, cut: bool = False) -> list[FieldDict]:
        """The arguments of calls that have none, unless a limit has `cut` the reply."""
        empty = [call for call in self._calls if not (cut or call.has_arguments)]
        return [{"index": call.index, "function": {"arguments": "{}"}} for call in empty]

    def _push_one(self, delta: Fields) -> FieldDict | None:
        if _is_custom(delta):
            return dict(delta)
        given = text_at(delta, "id")
        function = mapping_at(delta, "function")
        arguments = arguments_text(function.get("arguments"))
        slot = delta.get("index")
        if not isinstance(slot, int):
            slot = None
        call = self._newest.get(slot)
        if text_at(function, "name") and (call is None or given != call.id):
            call = _Call(len(self._calls), given or self._new_id(len(self._calls)))
            self._calls.append(call)
            self._newest[slot] = call
            sent = {**_sound(delta, call.id), "index": call.index}
            sent["function"] = {**sent["function"], "arguments": arguments}
        elif call is None or not arguments:
            return None  # without a name it cannot be executed
        else:
            sent = {"index": call.index, "function": {"arguments": arguments}}
        call.has_arguments = call.has_arguments or bool(arguments)
        return sent


def repair_message(message: FieldDict, new_id: NewId, *, cut: bool = False) -> int:
    """Put the tool calls of a complete assistant message into OpenAI's form; returns their number.
    A call without a name is removed. `cut`: a limit ended the reply, so that missing arguments are
    not filled in."""
    kept = []
    for call in objects(message.get("tool_calls")):
        if _is_custom(call):
            kept.append(dict(call))
        elif text_at(mapping_at(call, "function"), "name"):
            sound = _sound(call, text_at(call, "id") or new_id(len(kept)))
            if not (cut or sound["function"]["arguments"]):
                sound["function"]["arguments"] = "{}"
            kept.append(sound)
    message.pop("tool_calls", None)
    if kept:
        message["tool_calls"] = kept
    return len(kept)


def _sound(call: Fields, id: str) -> FieldDict:
    """A whole call, or the first delta of one, without its index."""
    inner = {k: v for k, v in mapping_at(call, "function").items() if v is not None}
    inner["arguments"] = arguments_text(inner.get("arguments"))
    rest = {k: v for k, v in call.items() if k != "index" and v is not None}
    return {**rest, "id": id, "type": "function", "function": inner}


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
