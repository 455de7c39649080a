"""Claude at the clouds: Messages in the envelopes of Amazon Bedrock and of Vertex AI.

Both name the model and whether to stream in the path, and the version of the API in the body.
Vertex AI streams events as Anthropic does; Bedrock packs each into a frame of AWS's event streams,
which botocore reads: without it such a stream is relayed, and recorded as unread."""

import json
import re
import struct
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any
from zlib import crc32

from gateway.dialects.base import SteeredRequest
from gateway.dialects.messages import MessagesDialect
from gateway.errors import GatewayError
from gateway.values import FieldDict, Fields, Texts
from gateway.wire.coerce import as_mapping, text_at
from gateway.wire.parsing import Loads
from gateway.wire.response_tee import NamedEnd
from gateway.wire.sse import SSEDecoder
from gateway.wire.upstream_errors import name_of

_PLACE = "projects/{project}/locations/{location}/publishers/anthropic/models/{model}"
_VERSION = "anthropic_version"  # what makes a body of Bedrock's one of Messages
_PIECE = 4096  # bytes given to the decoder at once: it copies what it has not read yet
# The last event of `invoke`, and the frame of that of `converse`, whose bytes no JSON has.
_LAST = (b64encode(b'{"type":"message_stop'), b":event-type\x07\x00\x08metadata")


class VertexDialect(MessagesDialect):
    """`:rawPredict` and `:streamRawPredict` of Anthropic's models. Source: Vertex AI's reference,
    `publishers.models`."""

    name = "vertex"
    path = f"/{_PLACE}:rawPredict"
    routes = tuple(
        f"/{version}/{_PLACE}:{verb}"
        for version in ("v1", "v1beta1")
        for verb in ("rawPredict", "streamRawPredict")
    )
    passed_on = tuple(route.replace("{model}", "count-tokens") for route in routes[::2])
    form = re.compile(r"(/v1\w*/.+/models/)([^/]+)((?::|%3[Aa])(?:rawPredict|(streamRawPredict)))")
    api = "vertex"


class _FramedEnd(NamedEnd):
    """Finds the last event in frames; of `invoke` their content is base64."""

    def begins_in(self, window: bytes) -> bool:
        return max(map(window.find, _LAST)) >= 0

    def closes(self, window: bytes) -> bool:
        return True


class BedrockDialect(MessagesDialect):
    """`InvokeModel` and `InvokeModelWithResponseStream` of Anthropic's models. A body of another
    maker's model is passed on as it is. Source: Amazon Bedrock's API reference."""

    name = "bedrock"
    path = "/model/{model}/invoke"
    routes = ("/model/{model:path}/invoke", "/model/{model:path}/invoke-with-response-stream")
    form = re.compile(r"(/model/)(.+)(/(?:invoke|converse)((?:-with-response)?-stream)?)")
    api = "bedrock"
    end = _FramedEnd()
    ping = b""
    stream_type = b"application/vnd.amazon.eventstream"

    def wrong_list(self, body: Fields) -> str:
        if _VERSION in body:
            return super().wrong_list(body)
        return ""

    def is_side_request(self, request: SteeredRequest) -> bool:
        return _VERSION not in request.body or super().is_side_request(request)

    def events(self, stream: bytes, loads: Loads) -> Iterable[FieldDict]:
        return super().events(self.plain(stream, loads), loads)

    def plain(self, answer: bytes, loads: Loads) -> bytes:
        if answer[:1] == b"{":
            events = b""
        else:
            events = b"".join(_events(answer, loads))
        if events.find(b"data: {") >= 0:
            return events
        return answer

    def in_envelope(self, events: bytes) -> bytes:
        decoder = SSEDecoder()
        found = [event.data for event in decoder.feed(events) if event.data]
        return b"".join([_chunk(data) for data in found])

    def own_answer(self, request: SteeredRequest, text: str, number: str, at: int) -> bytes:
        answer = super().own_answer(request, text, number, at=at)
        if request.stream:
            return self.in_envelope(answer)
        return answer

    def error_body(self, error: GatewayError) -> bytes:
        named = {"__type": _error_name(error), "message": error.message}
        return json.dumps(named, ensure_ascii=False).encode("utf-8", "replace")

    def error_event(self, error: GatewayError) -> bytes:
        name = _error_name(error)
        kinds = {":message-type": "exception", ":exception-type": name[0].lower() + name[1:]}
        return _frame(json.dumps({"message": error.message}).encode(), kinds)

    def broken_off(self, error: GatewayError) -> bytes:
        return self.error_event(error)


def _events(stream: bytes, loads: Loads) -> Iterator[bytes]:
    """The events in the complete frames, in Anthropic's form, and an unreadable one for a frame
    that is no event; what is behind the last complete frame as a part of an event."""
    at = 0
    with suppress(Exception):  # botocore's errors
        from botocore.eventstream import EventStreamBuffer

        buffer = EventStreamBuffer()
        for start in range(0, len(stream), _PIECE):
            buffer.add_data(stream[start : start + _PIECE])
            for frame in buffer:
                at += frame.prelude.total_length
                yield b"event: e\ndata: %b\n\n" % _event(frame, loads)
        if at < len(stream):
            yield b"event: e"
        return
    yield b"event: e\ndata: ?\n\n"


def _event(frame: Any, loads: Loads) -> bytes:
    if frame.headers.get(":message-type") != "event":
        return b'{"type": "error", "error": %b}' % frame.payload
    name = frame.headers.get(":event-type")
    if name != "chunk":
        return b'{"%b": %b}' % (name.encode(), frame.payload.replace(b"\n", b" "))
    with suppress(ValueError):
        return b64decode(text_at(as_mapping(loads(frame.payload)), "bytes")) or b"?"
    return b"?"


def _chunk(event: bytes) -> bytes:
    content = json.dumps({"bytes": b64encode(event).decode("ascii")})
    return event_frame("chunk", content.encode())


def event_frame(name: str, payload: bytes) -> bytes:
    """An event of a stream."""
    return _frame(payload, {":message-type": "event", ":event-type": name})


def _frame(payload: bytes, kinds: Texts) -> bytes:
    """One message of an event stream. Source: AWS's "Event stream encoding"."""
    head = b""
    for name, value in {**kinds, ":content-type": "application/json"}.items():
        head += struct.pack(f"!B{len(name)}sBH", len(name), name.encode(), 7, len(value))
        head += value.encode()
    prelude = struct.pack("!II", 16 + len(head) + len(payload), len(head))
    message = b"".join([prelude, struct.pack("!I", crc32(prelude)), head, payload])
    return message + struct.pack("!I", crc32(message))


def _error_name(error: GatewayError) -> str:
    return f"{name_of('bedrock', error.status)}Exception"


BEDROCK = BedrockDialect()
VERTEX = VertexDialect()
