"""Puts the chunks of a streamed chat completion together into one completion."""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from gateway.values import FieldDict, Fields
from gateway.wire.coerce import as_int, list_at, mapping_at
from gateway.wire.sse import SSEDecoder, SSEEvent
from gateway.wire.upstream_errors import Refusal, refusal_of

_END = b"data: [DONE]\n\n"
# The text before a piece: the start of a delta that contains only text, or only arguments.
_OPENING = re.compile(
    rb'"delta": ?\{(?:'
    rb'(?:"role": ?"assistant", ?)?(?:"content": ?null, ?)?'
    rb'"(?:content|reasoning_content|reasoning|refusal)": ?"'
    rb'|"tool_calls": ?\[\{"index": ?\d+, ?"function": ?\{"arguments": ?")'
)
# Fields that accumulate over chunks: a chunk with a second one of these is never merged.
_ADDS_UP = re.compile(
    rb'"(?:content|reasoning_content|reasoning|refusal|arguments|name)":\s*"|"logprobs":\s*\{'
)
_PIECE = re.compile(rb'[^"\\]*(?:\\.[^"\\]*)*')  # the inside of a JSON string
# After this number of chunks in a row that form no run, no more runs are looked for.
_PATIENCE = 3


def parse_plain(stream: bytes, loads: Callable[[bytes], Any]) -> list[Any] | None:
    """Chunks that make the same completion as the stream; None for a stream of another form."""
    payloads = plain_payloads(stream)
    if payloads is None:
        return None
    merged = merge_runs(payloads)
    try:
        chunks = loads(b"[" + b",".join(merged) + b"]")
    except ValueError:
        return None
    return chunks if len(chunks) == len(merged) else None


def plain_payloads(stream: bytes) -> list[bytes] | None:
    """The payloads of a stream of one-line `data: ` events that ends in `[DONE]`, else None."""
    if not stream.startswith(b"data: ") or not stream.endswith(b"\n\n" + _END) or b"\r" in stream:
        return None
    body = stream[len(b"data: ") : -len(_END) - 2]
    payloads = body.split(b"\n\ndata: ")
    # Every line end was part of a separator: no comments, no other fields, no further lines.
    if body.count(b"\n") == 2 * (len(payloads) - 1):
        return payloads
    return None


def merge_runs(payloads: list[bytes]) -> list[bytes]:
    """Fewer payloads with the same meaning: of each run of pieces the first, with all the text."""
    merged = []
    at = 0
    misses = 0
    while at < len(payloads) and misses < _PATIENCE:
        frame = _frame(payloads[at])
        end = at + 1
        if frame is None:
            merged.append(payloads[at])
        else:
            pieces, end = _run(payloads, at, *frame)
            merged.append(frame[0] + b"".join(pieces) + frame[1])
        if end == at + 1:
            misses = misses + 1
        else:
            misses = 0
        at = end
    return merged + payloads[at:]


def _run(payloads: list[bytes], start: int, before: bytes, after: bytes) -> tuple[list[bytes], int]:
    """(the pieces between `before` and `after` from index `start` on, the end of the run)."""
    pieces: list[bytes] = []
    first = len(before)
    last = -len(after)
    least = len(before) + len(after)
    for at in range(start, len(payloads)):
        payload = payloads[at]
        if not payload.startswith(before) or not payload.endswith(after) or len(payload) < least:
            return pieces, at
        piece = payload[first:last]
        # `in` raises and drops an error before it searches bytes (CPython 3.11): ten times as much.
        special = piece.find(b'"') >= 0 or piece.find(b"\\") >= 0
        if special and not _PIECE.fullmatch(piece):
            return pieces, at
        pieces.append(piece)
    return pieces, len(payloads)


def _frame(payload: bytes) -> tuple[bytes, bytes] | None:
    """Returns the bytes before and after the text in a chunk, for a chunk with exactly one piece
    of text; else None."""
    opening = _OPENING.search(payload)
    if opening is None:
        return None
    piece = _PIECE.match(payload, opening.end())
    end = piece.end() if piece else 0
    after = payload[end:]
    if not after.startswith(b'"') or _ADDS_UP.search(after):
        return None
    if _ADDS_UP.search(payload, 0, opening.start()):
        return None
    return payload[: opening.end()], after


_TEXT_KEYS = ("content", "refusal", "reasoning_content", "reasoning")


class CompletionAssembler:
    """Adds chunk after chunk; malformed chunks are counted and skipped, never raised. `began`:
    whether any chunk of a completion came. `failure`: the error that a chunk reported."""

    def __init__(self) -> None:
        self._head: FieldDict = {}
        self._choices: dict[int, FieldDict] = {}
        self.usage: FieldDict | None = None
        self.failure: Refusal | None = None
        self.malformed = 0
        self.began = False

    def add(self, chunk: Any) -> None:
        """Add one parsed chunk."""
        if not isinstance(chunk, dict):
            self.malformed += 1
            return
        if chunk.get("error") or "choices" not in chunk:
            failure = refusal_of(chunk)
            self.malformed += failure is None
            self.failure = failure or self.failure
        if not self._head:
            self._head = {k: v for k, v in chunk.items() if k not in ("choices", "usage", "object")}
        if isinstance(chunk.get("usage"), dict):
            self.usage = chunk["usage"]
        self.began = self.began or isinstance(chunk.get("choices"), list)
        for choice in list_at(chunk, "choices"):
            if isinstance(choice, dict):
                self._add_choice(choice)
            else:
                self.malformed += 1

    @property
    def finished(self) -> bool:
        """Whether a choice has its finish reason; an upstream may leave out those of others."""
        return any(c["finish_reason"] is not None for c in self._choices.values())

    def completion(self) -> FieldDict:
        """The completion, in the form of the answer to the same request without `stream`."""
        out = {**self._head, "object": "chat.completion"}
        out["choices"] = [_closed(self._choices[i]) for i in sorted(self._choices)]
        if self.usage is not None:
            out["usage"] = self.usage
        return out

    def _add_choice(self, choice: Fields) -> None:
        index = as_int(choice.get("index"), 0)
        state = self._choices.get(index)
        if state is None:
            state = {"index": index, "parts": {}, "calls": {}, "extra": {}, "finish_reason": None}
            state["logprobs"] = None
            self._choices[index] = state
        if choice.get("finish_reason") is not None:
            state["finish_reason"] = choice["finish_reason"]
        if isinstance(choice.get("logprobs"), dict):
            state["logprobs"] = _merge_lists(state["logprobs"], choice["logprobs"])
        delta = choice.get("delta")
        if isinstance(delta, dict):
            _add_delta(state, delta)


def _add_delta(state: FieldDict, delta: Fields) -> None:
    for key, value in delta.items():
        if value is None:
            continue
        if key in _TEXT_KEYS and isinstance(value, str):
            state["parts"].setdefault(key, []).append(value)
        elif key == "tool_calls" and isinstance(value, list):
            for call in value:
                if isinstance(call, dict):
                    _add_call(state["calls"], call, _index_of(state["calls"], call))
        elif key == "function_call" and isinstance(value, dict):
            _add_call(state["calls"], {"function": value}, -1)
        else:
            state["extra"][key] = value


def _index_of(calls: Mapping[int, FieldDict], part: Fields) -> int:
    """Returns the index of the call that a part belongs to. A part without an index continues
    the call with the same id. Another id, or a name after a call that has one, begins the next
    call; any other part continues the newest."""
    if isinstance(index := part.get("index"), int):
        return index
    newest = max(calls, default=-1)
    if id := part.get("id"):
        return next((at for at, call in calls.items() if call["id"] == id), newest + 1)
    named = mapping_at(part, "function").get("name")
    if newest < 0 or (named and calls[newest]["name"]):
        return newest + 1
    return newest


def _add_call(calls: dict[int, FieldDict], part: Fields, index: int) -> None:
    call = calls.setdefault(index, {"id": None, "type": "function", "name": [], "arguments": []})
    if isinstance(part.get("id"), str) and part["id"]:
        call["id"] = part["id"]
    if isinstance(part.get("type"), str):
        call["type"] = part["type"]
    function = part.get("function")
    if isinstance(function, dict):
        for key in ("name", "arguments"):
            if isinstance(function.get(key), str):
                call[key].append(function[key])


def _merge_lists(old: FieldDict | None, new: Fields) -> FieldDict:
    merged = dict(old or {})
    for key, value in new.items():
        known = merged.get(key)
        both = isinstance(known, list) and isinstance(value, list)
        merged[key] = [*known, *value] if both else value  # type: ignore[misc]
    return merged


def _closed(state: FieldDict) -> FieldDict:
    message = {"role": "assistant", "content": None, **state["extra"]}
    message |= {key: "".join(parts) for key, parts in state["parts"].items()}
    calls = dict(sorted(state["calls"].items()))
    if legacy := calls.pop(-1, None):
        message["function_call"] = _function(legacy)
    if calls:
        message["tool_calls"] = [
            {"id": c["id"], "type": c["type"], "function": _function(c)} for c in calls.values()
        ]
    return {
        "index": state["index"],
        "message": message,
        "logprobs": state["logprobs"],
        "finish_reason": state["finish_reason"],
    }


def _function(call: Fields) -> dict[str, str]:
    return {"name": "".join(call["name"]), "arguments": "".join(call["arguments"])}


def assemble(
    stream: bytes, loads: Callable[[bytes], Any] = json.loads
) -> tuple[CompletionAssembler, bool]:
    """A whole event stream -> (its assembler, whether the end marker came)."""
    assembler = CompletionAssembler()
    chunks = parse_plain(stream, loads)
    if chunks is not None:
        for chunk in chunks:
            assembler.add(chunk)
        return assembler, True
    decoder = SSEDecoder()
    done = False
    for event in [*decoder.feed(stream), *decoder.flush()]:
        done = add_event(assembler, event, loads) or done
    return assembler, done


def add_event(
    assembler: CompletionAssembler, event: SSEEvent, loads: Callable[[bytes], Any] = json.loads
) -> bool:
    """Add one event; True when it was the end marker."""
    if not event.data:
        return False
    if event.done:
        return True
    try:
        assembler.add(loads(event.data))
    except ValueError:
        assembler.malformed += 1
    return False
