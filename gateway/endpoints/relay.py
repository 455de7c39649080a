"""Relays the upstream's answer to the client, streamed or whole, and reads what it says.

A broken answer is made visible; one that cannot be read is relayed and recorded as unread."""

import asyncio
import re
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import orjson

from gateway.buffered_bytes import Share
from gateway.config import ServerSettings
from gateway.dialects import Dialect
from gateway.dialects.base import StreamRead
from gateway.endpoints.body import DisconnectWatch, Send, WriteNow
from gateway.errors import (
    BadRequest,
    GatewayError,
    ShuttingDown,
    UpstreamFailure,
    UpstreamMalformed,
)
from gateway.exchange import Exchange, Unread, UpstreamReply
from gateway.tasks import spawn
from gateway.upstream.base import LaneResponse
from gateway.upstream.dispatch import begun
from gateway.upstream.http1 import Http1Answer
from gateway.values import FieldDict
from gateway.wire.echo import EchoFilter
from gateway.wire.headers import header
from gateway.wire.parsing import parse_object
from gateway.wire.response_tee import ResponseWatch, UsageFilter, start_of, stream_watch
from gateway.wire.upstream_errors import refusal_of

# How server-sent events begin, whatever the label of the answer says.
_FIELD = re.compile(rb"(?:data|event|id|retry)?:")
# Bytes of content, without a byte order mark and white space, that tell events from JSON.
_ENOUGH_TO_TELL = len(b"event:")


def read_whole(dialect: Dialect, watch: ResponseWatch, usage: FieldDict | None) -> UpstreamReply:
    """A successful answer that is not a stream; `usage` as far as the lane knows it."""
    content = start_of(watch.content)
    if not content:
        return _unread(watch, usage)
    try:
        body = parse_object(content, orjson.loads)
    except BadRequest:
        read = _read_events(dialect, watch.content)
        if read.ended or read.accepted:
            return _of_stream(read, usage)
        return _unread(watch, usage)
    try:
        completion = dialect.read_answer(body)
        reported = (completion or body).get("usage")
        return UpstreamReply(
            completion=completion,
            usage=usage or (reported if isinstance(reported, dict) else None),
            pending_id=dialect.pending_id(body),
            failure=refusal_of(body),
        )
    except Exception:  # an upstream may put anything anywhere, nested to any depth
        return _unread(watch, usage)


def _of_stream(read: StreamRead, usage: FieldDict | None) -> UpstreamReply:
    """The reply of a stream that is complete."""
    usage = usage or read.usage
    return UpstreamReply(completion=read.completion, usage=usage, failure=read.failure)


def _read_events(dialect: Dialect, content: bytes) -> StreamRead:
    """The content of the events so far; nothing, when they cannot be read."""
    try:
        return dialect.read_stream(content, orjson.loads)
    except Exception:  # see read_whole
        return StreamRead()


def _unread(watch: ResponseWatch, usage: FieldDict | None) -> UpstreamReply:
    """The reply of an answer that cannot be read."""
    if watch.oversized:
        return UpstreamReply(usage=usage, unread="size")
    if watch.opaque or watch.cut:
        return UpstreamReply(usage=usage, unread="encoding")
    why: Unread = "form" if start_of(watch.content) else "empty"
    return UpstreamReply(usage=usage, unread=why)


_BLANK_LINES = (b"\n\n", b"\r\n\r\n")


class KeepAlive:
    """Sends a comment whenever nothing has come for `interval_s` and an event is complete. One
    timer for the whole stream, which looks at the clock when it fires."""

    def __init__(self, interval_s: float, send: Callable[[bytes], object], ping: bytes = b""):
        self._interval_s = interval_s
        self._ping = ping or b": keep-alive\n\n"
        self._send = send
        self._loop = asyncio.get_running_loop()
        self._heard = self._loop.time()
        self._between_events = True
        self._handle = self._loop.call_later(interval_s, self._ring)

    def hold(self) -> None:
        """Bytes have come and are not sent yet: no comment before them."""
        self._between_events = False

    def note(self, chunk: bytes) -> None:
        """These bytes were sent."""
        self._heard = self._loop.time()
        self._between_events = chunk.endswith(_BLANK_LINES)

    def stop(self) -> None:
        """No further comments."""
        self._handle.cancel()

    def _ring(self) -> None:
        wait_s = self._heard + self._interval_s - self._loop.time()
        if wait_s <= 0:
            wait_s = self._interval_s
            if self._between_events:
                self._send(self._ping)
        self._handle = self._loop.call_later(wait_s, self._ring)


def _passing(
    watch: ResponseWatch,
    usage_filter: UsageFilter | EchoFilter | None,
    keepalive: KeepAlive | None,
    write: WriteNow,
) -> Callable[[bytes], bool]:
    """Passes on what arrives without waking the relay's task, up to what may end the stream."""
    is_full = False

    def pass_on(chunk: bytes) -> bool:
        """Whether the piece was passed on; if not, nothing of it was taken."""
        nonlocal is_full
        if is_full:  # the task waits until the client has read
            is_full = False
            return False
        if not watch.take(chunk):
            return False
        is_full = not write(chunk if usage_filter is None else usage_filter.feed(chunk))
        if keepalive is not None:
            keepalive.note(chunk)
        return True

    return pass_on


# So much of an answer is handed to the server at a time: the rest counts in the room until the
# client has read what is before it.
_PIECE_BYTES = 2**17

# Seconds between the pings of a call that waits; proxies close silent streams after a minute.
_PING_S = 10.0


@dataclass(eq=False)
class Relay:
    """Relays one answer."""

    send: Send  # of ASGI
    exchange: Exchange  # the record of the request
    disconnect: DisconnectWatch  # stopped before the last byte is sent
    # runs exactly once for an answer that arrived completely, before the client gets its last byte
    complete: Callable[[UpstreamReply], Awaitable[None]]
    server: ServerSettings  # limits, and the seconds between two pings
    dialect: Dialect  # of the answer
    # runs when the client has been sent all of it: of a stream, its end marker
    delivered: Callable[[], None] = lambda: None
    # writes to the connection at once; None where that is not possible
    write: WriteNow | None = None
    share: Share | None = None  # the room for the bytes that are held; None: not counted
    # reads the stream; None before it begins
    _watch: ResponseWatch | None = field(default=None, init=False)
    # reads an answer that is no stream
    _whole: ResponseWatch | None = field(default=None, init=False)
    # comments that keep a waiting client; None when they are off
    _pings: KeepAlive | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self._limit = int(self.server.max_buffered_response_mb * 2**20)

    async def begin(self) -> None:
        """Send the head of a stream, and a ping every few seconds until the answer comes."""
        if self.exchange.response.begun:
            return
        self.exchange.response.begun = True
        self.exchange.start_response()
        headers = [(b"content-type", self.dialect.stream_type), (b"cache-control", b"no-cache")]
        await self.send({"type": "http.response.start", "status": 200, "headers": headers})
        await self._body(self.dialect.ping)
        self._pings = KeepAlive(_PING_S, self._comment, self.dialect.ping)

    def stop_pings(self) -> None:
        """No pings from here on."""
        if self._pings is not None:
            self._pings.stop()

    def received(self) -> bytes:
        """The bytes of the answer so far, decompressed; empty when they cannot be read."""
        watch = self._watch or self._whole
        if watch is not None:
            return watch.content
        return b""

    def seen(self) -> bytes:
        """The bytes of a stream so far, decompressed; empty when it cannot be read."""
        if self._watch is not None:
            return self._watch.content
        return b""

    async def answer(
        self,
        response: LaneResponse,
        asked_for_stream: bool,
        asked_usage: bool,
        echo: EchoFilter | None = None,
    ) -> None:
        """Relay an answer as a stream or as a whole body, whichever it is. A successful answer to a
        streaming request that is not labelled JSON counts as a stream, as for clients.
        `asked_usage`: whether the gateway asked for the usage chunk, which the client does not
        expect. `echo`: takes the guidance out of instructions that the answer repeats; no dialect
        needs both."""
        usage_filter = UsageFilter(orjson.loads) if asked_usage else echo
        kind = header(response.headers, b"content-type").lower()
        encoding = header(response.headers, b"content-encoding")
        labelled = kind.startswith(b"text/event-stream")
        as_stream = asked_for_stream and (b"json" not in kind or self.dialect.streams_json)
        self.stop_pings()
        succeeded = response.status < 300
        streams = succeeded and (labelled or as_stream)
        if self.exchange.response.begun and not streams:
            text = f"the upstream answered with status {response.status} and no stream"
            await self.break_off(UpstreamMalformed(text))
        elif streams or (asked_for_stream and succeeded and await self._holds_events(response)):
            await self._stream(response, encoding, usage_filter, labelled=labelled)
        else:
            await self._relay_whole(response, encoding, echo)

    async def _holds_events(self, response: LaneResponse) -> bool:
        """Whether a successful answer begins like server-sent events, whatever its label says."""
        asked = time.perf_counter()
        content = await begun(response, lambda text: len(start_of(text)) >= _ENOUGH_TO_TELL)
        self.exchange.timing.waited_s += time.perf_counter() - asked
        return bool(_FIELD.match(start_of(content)))

    async def _stream(
        self,
        response: LaneResponse,
        encoding: bytes,
        usage_filter: UsageFilter | EchoFilter | None,
        *,
        labelled: bool,
    ) -> None:
        """Relay an event stream, chunk by chunk. The chunk with the end marker waits for
        `complete`. A stream gets an error event and no proper end if it breaks off, or if a
        reply began in it that has neither an end marker nor a finish reason. A stream with a
        part that cannot be read ends as the upstream ended it."""
        watch = self._watch = stream_watch(encoding, self._limit, self.dialect.end)
        if self.share is not None:
            watch.allowance.holds = self.share.beside()
        plain = encoding in (b"", b"identity")
        if not plain:
            usage_filter = None  # compressed bytes cannot be edited
        await self._start(response, (b"content-length",))
        # A comment would spoil anything but events.
        silent_s = self.server.sse_keepalive_s if plain and labelled else 0
        keepalive = None
        if silent_s:
            keepalive = KeepAlive(silent_s, self._comment)
        if plain and self.write and self.write(b"") and isinstance(response, Http1Answer):
            response.pass_to(_passing(watch, usage_filter, keepalive, write=self.write))
        completed = False
        try:
            async for chunk in response:
                if keepalive is not None:
                    keepalive.hold()
                watch.feed(chunk)
                out = chunk
                if usage_filter:
                    out = usage_filter.feed(chunk)
                if watch.ended and not completed:
                    completed = await self._try_complete(watch, response)
                if out:
                    await self._body(out)
                if completed:
                    self.delivered()
                if keepalive is not None:
                    keepalive.note(chunk)
            if not completed:
                await self._try_complete(watch, response, last=True)
        except UpstreamFailure as exc:
            if not completed:
                await self.break_off(exc, visible=plain)
                return
        except asyncio.CancelledError:
            if not (completed or self.exchange.response.client_gone):
                await self.break_off(ShuttingDown(), visible=plain)
            raise
        finally:
            if keepalive is not None:
                keepalive.stop()
        rest = b""
        if usage_filter:
            rest = usage_filter.flush()
        await self._body(rest, last=True)
        self.delivered()

    async def _relay_whole(
        self, response: LaneResponse, encoding: bytes, echo: EchoFilter | None
    ) -> None:
        """Relay a body that is not a stream; `complete` runs before its first byte is sent."""
        watch = self._whole = ResponseWatch(encoding, self._limit)
        if self.share is not None:
            watch.allowance.holds = self.share.beside()
        chunks = []
        iterator = aiter(response)
        size = 0
        asked = time.perf_counter()
        async for chunk in iterator:
            watch.feed(chunk)
            chunks.append(chunk)
            size += len(chunk)
            if size > self._limit or watch.oversized:
                break
            if size > _PIECE_BYTES:
                await self._give_way()
        else:
            self.exchange.timing.waited_s += time.perf_counter() - asked
            if response.status < 300:
                await self.complete(read_whole(self.dialect, watch, response.usage))
            body = b"".join(chunks)
            chunks.clear()
            restored = body
            if echo and watch.plain:
                restored = echo.whole(body)
            await self._start(response, () if restored is body else (b"content-length",))
            await self._body(restored, last=True)
            self.delivered()
            return
        if response.status < 300:
            watch.oversized = True
            await self.complete(_unread(watch, response.usage))
        await self._start(response, ())
        chunks.reverse()
        while chunks:  # each is let go of when the client has it
            await self._body(chunks.pop())
        async for chunk in iterator:
            await self._body(chunk)
            await self._give_way()
        await self._body(b"", last=True)

    async def _try_complete(
        self, watch: ResponseWatch, response: LaneResponse, *, last: bool = False
    ) -> bool:
        """Whether the stream is complete now. At its `last` byte it has to be: without an end
        marker it was cut, or the upstream sends none, or its form is not known here: then nobody
        knows, and it ends as the upstream ended it."""
        read = _read_events(self.dialect, watch.content)
        if read.ended or (last and read.accepted):
            await self.complete(_of_stream(read, response.usage))
        elif not last:
            watch.ended = False
            return False
        elif read.began and not read.odd:
            raise UpstreamMalformed("the upstream's stream ended without a finish reason")
        else:
            await self.complete(read_whole(self.dialect, watch, response.usage))
        return True

    async def break_off(self, exc: GatewayError, *, visible: bool = True) -> None:
        """Send one error event, and close the connection without the end of the body. Many clients
        take a stream that simply ends for a complete one."""
        self.exchange.response.error = exc.label
        is_array = self._watch is not None and start_of(self._watch.content).startswith(b"[")
        if visible and not is_array:  # an array shows it by its missing bracket
            await self._body(self.dialect.broken_off(exc))

    def _comment(self, comment: bytes) -> None:
        if self.write is None:
            spawn(self._body(comment))
        else:
            self.write(comment)  # a client with bytes to read needs none

    async def _start(self, response: LaneResponse, drop: tuple[bytes, ...]) -> None:
        if self.exchange.response.begun:
            return
        headers = [h for h in response.headers if h[0] not in drop]
        self.exchange.start_response()
        await self.send(
            {"type": "http.response.start", "status": response.status, "headers": headers}
        )

    async def _give_way(self) -> None:
        if self.share is not None:  # each write of a piece takes as long as a small call
            await self.share.give_way()

    async def _body(self, body: bytes, *, last: bool = False) -> None:
        if last:
            self.disconnect.stop()
        begin = 0
        while len(body) - begin > _PIECE_BYTES:
            piece = body[begin : begin + _PIECE_BYTES]
            await self.send({"type": "http.response.body", "body": piece, "more_body": True})
            begin += _PIECE_BYTES
            await self._give_way()
        await self.send({"type": "http.response.body", "body": body[begin:], "more_body": not last})
