"""Event streams as LiteLLM's adapters can read them: an event that is no JSON ends a stream there.

The adapters read line by line and raise at the first line they do not understand, with the rest of
the answer still to come. Here such events are left out, and the others written in one plain form.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable
from typing import Any

from gateway.upstream.litellm_lane.readable import Json, encoded, is_known, normal, parsed
from gateway.wire.sse import SSEDecoder, SSEEvent


class ReadableEvents:
    """Bytes of an event stream in any split, to events an adapter can read."""

    __slots__ = ("_calls", "_closed", "_decoder", "_early", "_ended", "_known", "_others")

    def __init__(self, *, with_ids: bool = False) -> None:
        """`with_ids`: a call without an id gets one; LiteLLM's translations leave it out."""
        self._calls: set[Any] | None = set() if with_ids else None
        self._decoder = SSEDecoder()
        self._closed = self._ended = self._known = self._others = False
        self._early: dict[Any, Json] = {}

    def feed(self, content: bytes) -> bytes:
        """The events that unpacked bytes complete."""
        return self._rendered(self._decoder.feed(content))

    def flush(self) -> bytes:
        """The last event of a stream that ends without a blank line."""
        return self._rendered(self._decoder.flush())

    @property
    def ended(self) -> bool | None:
        """Whether the provider has ended its turn; None in a form that is not known here."""
        return None if self._others and not self._known else self._ended

    def _rendered(self, events: Iterable[SSEEvent]) -> bytes:
        return b"".join(map(self._plain, events))

    def _plain(self, event: SSEEvent) -> bytes:
        """An event in one line of ASCII; nothing for one that is no object of JSON, or that comes
        after the end marker."""
        if self._closed:
            return b""
        if event.done:
            self._closed = True
            return b"data: [DONE]\n\n"
        try:
            value = parsed(event.data)
        except ValueError:
            return b""
        if not isinstance(value, dict | list) or not value:
            return b""
        value = normal(value)
        if not is_known(value):
            self._note_other(value)
            return _line(value, event.event)
        self._known = True
        self._ended = self._ended or _ends_turn(value)
        for choice in value.get("choices") or () if self._calls is not None else ():
            for call in choice["delta"].get("tool_calls") or ():
                self._give_id(choice["index"], call)
        return self._late_input(value) + _line(value)

    def _give_id(self, choice: int, call: Json) -> None:
        assert self._calls is not None
        slot = (choice, call.get("index"))
        if slot not in self._calls and not call.get("id"):
            call["id"] = f"call_{uuid.uuid4().hex}"
        self._calls.add(slot)

    def _note_other(self, value: Any) -> None:
        failed = isinstance(value, dict) and (value.get("error") or value.get("type") == "error")
        if failed:
            self._known = True  # so that no end is made up for the stream
        else:
            self._others = True

    def _late_input(self, event: Json) -> bytes:
        """The input of a call that came with its start and in no delta, as a delta.

        Anthropic sends it in deltas. Servers that imitate it send it at the start, which adapters
        take for the usual empty placeholder.
        """
        index, kind = event.get("index"), event.get("type")
        if kind == "content_block_start" and event["content_block"].get("type") == "tool_use":
            self._early[index] = event["content_block"]["input"]
            event["content_block"]["input"] = {}
        elif kind == "content_block_delta" and event["delta"].get("type") == "input_json_delta":
            self._early.pop(index, None)
        elif kind == "content_block_stop" and (early := self._early.pop(index, None)):
            return _line({**event, "type": "content_block_delta", "delta": _input_delta(early)})
        return b""


def _input_delta(value: Json) -> Json:
    text = json.dumps(value, separators=(",", ":"))
    return {"type": "input_json_delta", "partial_json": text}


def _ends_turn(value: Json) -> bool:
    kind = value.get("type")
    if kind == "message_stop" or (kind == "message_delta" and value["delta"].get("stop_reason")):
        return True
    return any(choice.get("finish_reason") for choice in value.get("choices") or ())


def as_events(answer: Any) -> bytes:
    """A whole answer, given for a stream, as the events of one; empty for a form not known here."""
    if not isinstance(answer, dict):
        return b""
    if answer.get("error") or answer.get("type") == "error":
        return b"data: %b\n\n" % encoded(answer)
    if answer.get("choices"):
        return _line(_chunk(answer)) + b"data: [DONE]\n\n"
    if answer.get("type") == "message":
        return b"".join(map(_line, _events_of(answer)))
    return b""


def _line(value: Any, name: bytes = b"") -> bytes:
    """An event; one whose JSON has a type is named after it."""
    if is_known(value):
        name = str(value.get("type") or "").encode()
    head = b"event: %b\n" % name if name else b""
    return b"%bdata: %b\n\n" % (head, encoded(value))


def _chunk(answer: Json) -> Json:
    choices = []
    for choice in answer["choices"]:
        delta = choice.get("message") or choice.get("delta") or {}
        calls = delta.get("tool_calls") or ()
        for at, call in enumerate(calls):
            call.setdefault("index", at)
        choices.append({**{k: v for k, v in choice.items() if k != "message"}, "delta": delta})
    return {**answer, "object": "chat.completion.chunk", "choices": choices}


def _events_of(message: Json) -> Iterable[Json]:
    yield {"type": "message_start", "message": {**message, "content": [], "stop_reason": None}}
    for index, block in enumerate(message["content"]):
        begun, pieces = _begun(block)
        yield {"type": "content_block_start", "index": index, "content_block": begun}
        for piece in pieces:
            yield {"type": "content_block_delta", "index": index, "delta": piece}
        yield {"type": "content_block_stop", "index": index}
    ending = {"stop_reason": message.get("stop_reason"), "stop_sequence": None}
    yield {"type": "message_delta", "delta": ending, "usage": message["usage"]}
    yield {"type": "message_stop"}


def _begun(block: Json) -> tuple[Json, list[Json]]:
    """(the start of a block, the deltas that complete it)."""
    if block.get("type") == "text":
        return {**block, "text": ""}, [{"type": "text_delta", "text": block.get("text", "")}]
    if block.get("type") == "thinking":
        pieces = [{"type": "thinking_delta", "thinking": block.get("thinking", "")}]
        if signature := block.get("signature"):
            pieces.append({"type": "signature_delta", "signature": signature})
        return {**block, "thinking": "", "signature": ""}, pieces
    if block.get("type") == "tool_use":
        return {**block, "input": {}}, [_input_delta(block["input"])]
    return block, []
