"""Between LiteLLM and the network: records what one call really sent and received.

LiteLLM rewrites errors, retries a refused connection behind its caller's back, keeps a connection
open after a cancel, and has its own time limits. So each of its HTTP clients gets a
`CallTransport`, which finds the current call in a context variable, sends the request through the
native lane's pool under the gateway's limits, and notes what the provider answered and what
broke."""

import json
import re
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import suppress
from contextvars import ContextVar
from typing import Any
from uuid import uuid4

import httpx
from msgspec import Struct, field

from gateway.errors import UpstreamFailure, UpstreamMalformed
from gateway.features.litellm import repaired_answers
from gateway.features.litellm.chunks import as_chunk
from gateway.features.litellm.credential_hosts import (
    KEY_HEADERS,
    Destination,
    carries_key,
    origin_of,
)
from gateway.upstream.base import LaneResponse
from gateway.values import FieldDict
from gateway.wire.compression import Unpacker, codings_of, unreadable
from gateway.wire.headers import RawHeaders, header
from gateway.wire.sse import SSEDecoder, SSEEvent


class ReadableEvents:
    """Bytes of an event stream in any split, to events an adapter can read."""

    def __init__(self, *, with_ids: bool):
        """`with_ids`: the answer is translated to another dialect: a call without an id gets one,
        and a choice is the first; LiteLLM's translations lose what has neither."""
        self._calls: set[Any] | None = set() if with_ids else None
        self._decoder = SSEDecoder()
        self._closed = self._ended = self._known = self._others = False
        self._early: dict[Any, FieldDict] = {}

    def feed(self, content: bytes) -> bytes:
        """The events that unpacked bytes complete."""
        return b"".join(map(self._plain, self._decoder.feed(content)))

    def flush(self) -> bytes:
        """The last event of a stream that ends without a blank line."""
        return b"".join(map(self._plain, self._decoder.flush()))

    @property
    def ended(self) -> bool | None:
        """Whether the provider has ended its turn; None in a form that is not known here."""
        if self._others and not self._known:
            return None
        return self._ended

    def _plain(self, event: SSEEvent) -> bytes:
        """An event in one line of ASCII; nothing for no object of JSON, or after the end marker."""
        if self._closed:
            return b""
        if event.done:
            self._closed = True
            return b"data: [DONE]\n\n"
        try:
            value = repaired_answers.parsed(event.data)
        except ValueError:
            return b""
        if not isinstance(value, dict | list) or not value:
            return b""
        value = repaired_answers.normal(value)
        if not repaired_answers.is_known(value):
            if _is_error(value):
                self._known = True  # so that no end is made up for the stream
            else:
                self._others = True
            return _line(value, event.event)
        self._known = True
        choices = value.get("choices") or ()
        stopped = value.get("type") == "message_delta" and value["delta"].get("stop_reason")
        finished = any(choice.get("finish_reason") for choice in choices)
        if stopped or finished or value.get("type") == "message_stop":
            self._ended = True
        if self._calls is not None:
            for choice in choices:
                choice["index"] = 0  # only one was asked for, whatever its provider counts from
                for call in choice["delta"].get("tool_calls") or ():
                    slot = (choice["index"], call.get("index"))
                    if slot not in self._calls and not call.get("id"):
                        call["id"] = f"call_{uuid4().hex}"
                    self._calls.add(slot)
        return self._late_input(value) + _line(value)

    def _late_input(self, event: FieldDict) -> bytes:
        """The input of a call that came with its start and in no delta, as a delta. Anthropic sends
        it in deltas; servers that imitate it send it at the start, where adapters ignore it."""
        index = event.get("index")
        kind = event.get("type")
        if kind == "content_block_start" and event["content_block"].get("type") == "tool_use":
            self._early[index] = event["content_block"]["input"]
            event["content_block"]["input"] = {}
        elif kind == "content_block_delta" and event["delta"].get("type") == "input_json_delta":
            self._early.pop(index, None)
        elif kind == "content_block_stop" and (early := self._early.pop(index, None)):
            return _line({**event, "type": "content_block_delta", "delta": _input_delta(early)})
        return b""


def _is_error(value: Any) -> bool:
    return isinstance(value, dict) and bool(value.get("error") or value.get("type") == "error")


def _input_delta(value: FieldDict) -> FieldDict:
    return {"type": "input_json_delta", "partial_json": json.dumps(value, separators=(",", ":"))}


def as_events(answer: Any) -> bytes:
    """A whole answer, given for a stream, as the events of one; empty for a form not known here."""
    if _is_error(answer):
        return b"data: %b\n\n" % repaired_answers.encoded(answer)
    if isinstance(answer, dict) and answer.get("choices"):
        return _line(as_chunk(answer)) + b"data: [DONE]\n\n"
    if isinstance(answer, dict) and answer.get("type") == "message":
        return b"".join(map(_line, _events_of(answer)))
    return b""


def _line(value: Any, name: bytes = b"") -> bytes:
    """An event; one whose JSON has a type is named after it."""
    if repaired_answers.is_known(value):
        name = str(value.get("type") or "").encode()
    head = b""
    if name:
        head = b"event: %b\n" % name
    return b"%bdata: %b\n\n" % (head, repaired_answers.encoded(value))


def _events_of(message: FieldDict) -> Iterable[FieldDict]:
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


def _begun(block: FieldDict) -> tuple[FieldDict, list[FieldDict]]:
    """(the start of a block, the deltas that complete it)."""
    match block.get("type"):
        case "text":
            return {**block, "text": ""}, [{"type": "text_delta", "text": block.get("text", "")}]
        case "thinking":
            pieces = [{"type": "thinking_delta", "thinking": block.get("thinking", "")}]
            if signature := block.get("signature"):
                pieces.append({"type": "signature_delta", "signature": signature})
            return {**block, "thinking": "", "signature": ""}, pieces
        case "tool_use":
            return {**block, "input": {}}, [_input_delta(block["input"])]
    return block, []


_TAIL_BYTES = 1 << 14
_MOST_AT_ONCE = 2**26  # bytes that one chunk may unpack to; no provider's chunk comes near
_MARK_BYTES = 32  # longer than any end mark
SHORTEST_SECRET = 8  # anything shorter would blank out ordinary words

_OF_THE_CODED = frozenset({b"content-encoding", b"content-length", b"content-type"})
_OF_THE_CONNECTION = frozenset({b"content-encoding", b"content-length", b"transfer-encoding"})
_EVENT_STREAM = b"text/event-stream"
_EVENT_FIELD = re.compile(rb"(?:data|event|id|retry)?:")
_FIELD_BYTES = 6  # the longest field of an event stream, with its colon
# Streams of one JSON text a line, which are not read to their end first.
_LINES = (b"application/x-ndjson", b"application/stream+json", b"application/jsonl")
# Bodies in the form of another wire, which its adapter reads itself.
_OTHER_FORMS = (b"application/vnd.amazon", b"image/", b"audio/", b"video/", b"multipart/")
_STREAMED = re.compile(rb'"stream"\s{0,3}:\s{0,3}true')

# Other dialects have to have a usage, and an adapter fails without one.
_NO_USAGE = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
# Answers after which the clients inside LiteLLM send a call again in any case.
_RETRIED = frozenset({408, 409, 429, *range(500, 600)})

current_call: "ContextVar[ProviderCall | None]" = ContextVar("litellm_call", default=None)
# The native lane's `send`: method, URL, headers and body to the answer, or UpstreamFailure.
Send = Callable[[str, str, RawHeaders, bytes], Awaitable[LaneResponse]]


class Received(Struct, kw_only=True):
    """The last answer to a call, filled in while it is read."""

    status: int | None = None  # None before there is an answer
    headers: RawHeaders = []  # end-to-end
    error_body: bytes | None = None  # the decoded body of an answer of 400 and above
    tail: bytes = b""  # the end of what has been read, which may contain a streamed error event
    marked: bool = False  # whether an end mark has come
    events: ReadableEvents | None = None  # the reader of an event stream
    open: LaneResponse | None = None  # the answer while it is read; closed with the call

    def refused_again(self, request: httpx.Request) -> httpx.Response | None:
        """The answer that a repeated request gets without being sent: the one it got before."""
        if self.status is None or self.status not in _RETRIED or self.error_body is None:
            return None
        headers = [h for h in self.headers if h[0] not in _OF_THE_CONNECTION]
        return httpx.Response(
            self.status, headers=headers, content=self.error_body, request=request
        )


class ProviderCall(Struct, kw_only=True, eq=False):
    """One call to a provider as the network saw it; filled in while it runs."""

    send: Send  # gives a request to the connection pool
    # where the call may go, and with which credentials
    to: Destination = field(default_factory=Destination)
    received: Received = field(default_factory=Received)  # the answer
    failure: UpstreamFailure | None = None  # what broke below HTTP: connection, time limit
    translated: bool = False  # whether LiteLLM answers in another dialect than chat completions
    # the bytes that end a turn, for adapters that report every chunk as the last one
    end_marks: tuple[bytes, ...] = ()
    # the credentials that were sent, to be removed from error messages
    secrets: set[str] = set()

    def note_request(self, request: httpx.Request) -> None:
        """Begin an attempt, and remember the credentials it carries."""
        self.received = Received()
        self.failure = None
        values = [request.headers.get(name, "") for name in KEY_HEADERS]
        values.append(request.url.params.get("key", ""))
        words = (word for value in values for word in value.split())
        self.secrets.update(word for word in words if len(word) >= SHORTEST_SECRET)

    def note_bytes(self, chunk: bytes) -> None:
        """Keep the tail; look for the end of the turn, also across two reads."""
        got = self.received
        window = got.tail[-_MARK_BYTES:] + chunk
        got.marked = got.marked or any(mark in window for mark in self.end_marks)
        got.tail = (got.tail + chunk)[-_TAIL_BYTES:]

    @property
    def ended(self) -> bool:
        """Whether the provider ended the turn; True where nothing says how it ends."""
        events = self.received.events
        if events is not None and (ended := events.ended) is not None:
            return ended
        return self.received.marked or not self.end_marks

    def failed(self, failure: UpstreamFailure) -> httpx.TransportError:
        """Keep the failure; gives an error that LiteLLM does not retry itself."""
        self.failure = failure
        kind = httpx.TimeoutException if failure.status == 504 else httpx.NetworkError
        return kind(failure.message)

    async def close(self) -> None:
        """Close the provider's connection now, even if it is still sending."""
        answer = self.received.open
        self.received.open = None
        if answer is not None:
            await answer.aclose()


class CallTransport(httpx.AsyncBaseTransport):
    """The transport of LiteLLM's HTTP clients, which works for its context's call. Outside a call
    of the lane (another user of LiteLLM in this process) `fallback` does the work."""

    def __init__(self, fallback: httpx.AsyncBaseTransport):
        self._fallback = fallback

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """The answer to one request. Raises: httpx.TransportError: see the call's `failure`."""
        call = current_call.get()
        if call is None:
            return await self._fallback.handle_async_request(request)
        if (refusal := call.to.refusal(request)) is not None:
            raise call.failed(refusal)
        # Images and tokens are fetched on the way; only a POST gets the provider's answer.
        watched = request.method == "POST"
        if watched:
            if call.failure is not None:
                raise call.failed(call.failure)  # LiteLLM's own retry: the dispatcher retries
            if (earlier := call.received.refused_again(request)) is not None:
                return earlier
            call.note_request(request)
        request.headers["accept-encoding"] = "identity" if call.end_marks else "gzip, deflate"
        content = await request.aread()
        try:
            answer = await call.send(request.method, str(request.url), request.headers.raw, content)
        except UpstreamFailure as exc:
            raise (call.failed(exc) if watched else httpx.NetworkError(exc.message)) from exc
        if watched:
            call.received.status = answer.status
            call.received.headers = answer.headers
            call.received.open = answer
        # What follows a call has its headers; an image is fetched from wherever it is.
        follows = carries_key(request) or bool(call.to.redirected_from)
        moved = 300 <= answer.status < 400 and follows
        if moved:
            call.to.redirected_from = origin_of(request.url)
        else:
            call.to.redirected_from = ""
        return await _readable(
            call, request, answer, streamed=_STREAMED.search(content) is not None
        )

    async def aclose(self) -> None:
        """Close the fallback; the connections of calls belong to the native lane."""
        await self._fallback.aclose()


async def _readable(
    call: ProviderCall, request: httpx.Request, answer: LaneResponse, *, streamed: bool
) -> httpx.Response:
    """An answer in a form that LiteLLM's adapters can read."""
    watched = request.method == "POST"
    coded = codings_of(header(answer.headers, b"content-encoding"))
    if unknown := unreadable(coded):
        await answer.aclose()
        if answer.status < 400:
            named = b", ".join(unknown).decode("latin-1")
            text = f"the provider answered in a coding that was not asked for: {named}"
            raise call.failed(UpstreamMalformed(text))
        call.received.error_body = b""  # the status says enough
        return httpx.Response(answer.status, content=b"", request=request)
    body = _WatchedBody(answer, call, Unpacker(coded) if coded else None)
    kind = header(answer.headers, b"content-type").lower()
    if watched and answer.status < 300 and not kind.startswith(_OTHER_FORMS):
        kind = await body.prepare(kind, streamed=streamed)
    headers = [(k, v) for k, v in answer.headers if k not in _OF_THE_CODED]
    if kind:
        headers.append((b"content-type", kind))
    response = httpx.Response(answer.status, headers=headers, stream=body, request=request)
    if watched and answer.status >= 400:
        call.received.error_body = b""
        with suppress(httpx.DecodingError, httpx.TransportError):
            call.received.error_body = await response.aread()
        call.failure = None  # a body that cannot be read: the status says enough
    return response


class _WatchedBody(httpx.AsyncByteStream):
    """A response body that leaves its tail and its failure with the call."""

    def __init__(self, answer: LaneResponse, call: ProviderCall, unpacker: Unpacker | None):
        self._answer = answer
        self._call = call
        self._unpacker = unpacker
        self._chunks = self._unpacked()
        self._first: list[bytes] = []
        self._events: ReadableEvents | None = None
        call.received.events = None

    async def prepare(self, kind: bytes, *, streamed: bool) -> bytes:
        """Read as far as it takes to know the form of a successful answer, whatever it is called;
        gives its content type. `streamed`: a stream was asked for."""
        try:
            start = await self._start()
            if _EVENT_FIELD.match(start) or (not start and kind.startswith(_EVENT_STREAM)):
                return self._read_events()
            if kind.startswith(_EVENT_STREAM) and streamed and not start.startswith((b"{", b"[")):
                return self._read_events()
            if streamed and start.startswith(b"<"):
                raise UpstreamMalformed("the provider answered with a page instead of a stream")
            if not start.startswith((b"{", b"[")) or (streamed and kind.startswith(_LINES)):
                return kind
            whole = b"".join(self._first) + b"".join([chunk async for chunk in self._chunks])
        except UpstreamFailure as exc:
            raise self._call.failed(exc) from exc
        try:
            value = repaired_answers.parsed(whole)
            if not streamed and whole.count(b"{") + whole.count(b"[") > repaired_answers.MOST_DEEP:
                repaired_answers.refuse_depth(value)
        except repaired_answers.TooDeep as exc:
            whose = self._call.to.provider or "the provider"
            text = f"the answer of {whose} is nested too deep to be translated"
            raise self._call.failed(UpstreamMalformed(text)) from exc
        except ValueError:
            self._first = [whole]
            return kind
        value = repaired_answers.normal(value)
        if not streamed and repaired_answers.is_known(value) and value.get("choices") == []:
            raise self._call.failed(UpstreamMalformed("the provider's answer has no choices"))
        if self._call.translated and repaired_answers.is_known(value) and "choices" in value:
            value.setdefault("usage", dict(_NO_USAGE))
        if streamed and (events := as_events(value)):
            self._first = [events]
            return self._read_events()
        if streamed and not value:
            raise self._call.failed(UpstreamMalformed("the provider's stream has no events"))
        self._first = [repaired_answers.encoded(value)]
        return b"application/json"

    def _read_events(self) -> bytes:
        self._call.received.events = self._events = ReadableEvents(with_ids=self._call.translated)
        return _EVENT_STREAM

    async def _start(self) -> bytes:
        """The first bytes that are no white space; empty for an empty body."""
        start = b""
        async for chunk in self._chunks:
            self._first.append(chunk)
            start = b"".join(self._first).removeprefix(b"\xef\xbb\xbf").lstrip()
            if len(start) >= _FIELD_BYTES:
                break
        return start

    async def __aiter__(self) -> AsyncIterator[bytes]:
        events = self._events
        feed = bytes if events is None else events.feed
        first = self._first
        self._first = []
        try:
            for chunk in first:
                if ready := feed(chunk):
                    yield ready
            async for chunk in self._chunks:
                if ready := feed(chunk):
                    yield ready
        except UpstreamFailure as exc:
            raise self._call.failed(exc) from exc
        if events is not None and (rest := events.flush()):
            yield rest

    async def _unpacked(self) -> AsyncIterator[bytes]:
        """The chunks without their compression."""
        unpacker = self._unpacker
        async for chunk in self._answer:
            content = chunk
            try:
                if unpacker is not None:
                    content = unpacker.decompress(content, _MOST_AT_ONCE)
            except zlib.error as exc:
                raise UpstreamMalformed(
                    "the provider's answer is not compressed as announced"
                ) from exc
            if len(content) >= _MOST_AT_ONCE and unpacker is not None:  # the rest of it is lost
                raise UpstreamMalformed("the provider's answer unpacks to too much at once")
            self._call.note_bytes(content)
            if content:
                yield content
        if unpacker is not None and unpacker.cut:
            raise UpstreamMalformed("the provider's answer broke off before its end")

    async def aclose(self) -> None:
        await self._answer.aclose()
