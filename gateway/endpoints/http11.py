"""uvicorn's HTTP/1.1 protocol, adapted to the needs of a proxy."""

import asyncio
import re
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import httptools
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)

from gateway.auth.hosts import host_name
from gateway.config import ServerSettings
from gateway.endpoints.body import ON_GONE, WRITE_NOW, Message, Receive, Scope, Send
from gateway.endpoints.realtime import HAND_OVER
from gateway.endpoints.unknown_routes import not_offered
from gateway.errors import BadRequest, GatewayError, HeadTooLarge, Overloaded, RequestTooSlow
from gateway.upstream.websocket import BUFFER_BYTES, Streams
from gateway.wire.headers import RawHeaders

# A provider's answer with a status that HTTP does not have reaches the client as it is.
STATUS_LINE.update({status: b"HTTP/1.1 %d \r\n" % status for status in range(600, 1000)})

_OFFER = (b"connection", b"upgrade", b"http2-settings")
_LINGER_S = 1.0
# How long, and how many, of a refused client's bytes are still read: closed at once, the connection
# would be reset, and the client might not see the answer (RFC 9112 section 9.6).
_LINGER_BYTES = 2**20


class HttpProtocol(HttpToolsProtocol):
    """Handles what uvicorn's protocol does not.

    Heads are bounded, in bytes, fields and time; the parser itself has no limit. What frames a
    chunked body (extensions, trailers) is bounded like a head. Silent connections are closed.

    `Upgrade` is an offer that a server may ignore (RFC 9110 section 7.8); Java's HTTP client offers
    `h2c` with each first request. The parser takes the bytes after the head for another protocol
    and would lose the body, so it parses the request again without the offer. A WebSocket is not
    ignored, because its client would wait for ever: the application refuses it, or asks for the
    connection itself (`HAND_OVER` in the scope's extensions).

    Trailers are not headers (RFC 9110 section 6.5.1) and are dropped. HTTP/1.0 clients get
    responses without chunked encoding."""

    def __init__(
        self,
        *args: Any,
        limits: ServerSettings,
        refused: Callable[[GatewayError], None],
        **kwargs: Any,
    ):
        super().__init__(*args, **kwargs)
        self._limits = limits
        self._refused = refused
        self._max_head_bytes = int(limits.max_head_kb * 1024)
        self._head_timer: asyncio.TimerHandle | None = None
        self._refusal: GatewayError | None = None  # raised in a callback of the parser
        self._deaf = False  # whether what arrives is dropped: no further request is read
        self._dropped_bytes = 0
        self._offers_connection = False  # whether the application may ask for the connection
        self._early = b""  # what a WebSocket's client sent before the application took over
        self._offered = False
        self._in_body = False
        self._gone: tuple[RequestResponseCycle, Callable[[], None]] | None = None
        self._chunk_bytes = 0  # bytes that are being parsed
        self._unread_bytes = 0  # bytes since the last that were part of a body or ended a head

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for the first request, not for ever."""
        super().connection_made(transport)
        self._wait_for_bytes()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel all timers."""
        self._stop_timers()
        super().connection_lost(exc)
        self._tell_gone()

    def data_received(self, data: bytes) -> None:
        """Feed the parser; after the head of a request with an offer, use a new parser."""
        if self._deaf:
            self._dropped_bytes += len(data)
            if self._dropped_bytes > _LINGER_BYTES:
                self.transport.close()
            elif self._offers_connection:
                self._early += data
                if len(self._early) > BUFFER_BYTES:
                    self.flow.pause_reading()
            return
        self._unset_keepalive_if_required()
        self._chunk_bytes = len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as end:
            # The exception says how many bytes were parsed.
            if self._offered:
                self._without_offer(data[end.args[0] :])
            else:  # what follows is not HTTP: it must not be read as another request
                self._deaf = True
                self.cycle.keep_alive = False
                self._early += data[end.args[0] :]
        except httptools.HttpParserError:
            self._refuse(self._refusal or BadRequest("Invalid HTTP request received."))
        else:
            self._unread_bytes += self._chunk_bytes
            if self._unread_bytes or self._in_body or not self._answering:
                self._limit_wait()

    def on_headers_complete(self) -> None:
        """Start the request, unless it is refused or has to be parsed again."""
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None
        try:
            self._check_head()
        except GatewayError as error:
            self._refusal = error
            raise  # stops the parser
        self._unread_bytes = -self._chunk_bytes
        self._offered = self.parser.should_upgrade() and not self._is_websocket()
        if not self._offered:
            if self._is_websocket():
                self._offers_connection = True
                self.scope["extensions"] = {HAND_OVER: self._hand_over}  # type: ignore[dict-item]
            super().on_headers_complete()
            self._offer_writing()
            self._in_body = True
            self.headers = []  # for trailers, which the parser appends; the request has its own

    def on_body(self, body: bytes) -> None:
        """Take in a piece of the body. uvicorn copies each into a buffer, and that into what the
        application gets. Most bodies are one piece, which needs no copy."""
        self._unread_bytes = -self._chunk_bytes
        cycle = self.cycle
        if cycle.body or cycle.response_complete or self.parser.should_upgrade():
            kept: Any = cycle.body
            if isinstance(kept, bytes):
                cycle.body = bytearray(kept)  # to which further pieces are added in place
            super().on_body(body)
            return
        cycle.body = body  # type: ignore[assignment]
        if len(body) > HIGH_WATER_LIMIT:
            self.flow.pause_reading()
        cycle.message_event.set()

    def on_message_complete(self) -> None:
        """Ignore the end that the parser reports after the head of a request with an offer."""
        if not self._offered:
            self._in_body = False
            self._unread_bytes = -self._chunk_bytes
            super().on_message_complete()

    @property
    def _answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _check_head(self) -> None:
        if self.pipeline and len(self.pipeline) >= self._limits.max_pipelined_requests:
            raise Overloaded(
                f"the client waits for {len(self.pipeline)} answers on this connection "
                "(server.max_pipelined_requests)"
            )
        size = self._unread_bytes + self._chunk_bytes
        if size > self._max_head_bytes:  # some of it may be an earlier request, or the body
            size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        check_size(size, len(self.headers), self._limits)
        parser = self.parser
        check_head(parser.get_method(), parser.get_http_version(), self.url, headers=self.headers)

    def _is_websocket(self) -> bool:
        return self._get_upgrade() == b"websocket" and self.parser.get_method() == b"GET"

    def _offer_writing(self) -> None:
        """Let the application write pieces of a chunked answer without a coroutine for each."""
        if self.scope["http_version"] == "1.1" and not self._offers_connection:
            offers: dict[Any, Any] = {
                WRITE_NOW: partial(self._write_now, self.cycle),
                ON_GONE: partial(self._on_gone, self.cycle),
            }
            self.scope["extensions"] = offers

    def _write_now(self, cycle: RequestResponseCycle, body: bytes) -> bool:
        if cycle.disconnected or cycle.response_complete or not cycle.chunked_encoding:
            return False
        if body:
            self.transport.write(b"%x\r\n%b\r\n" % (len(body), body))
        return not self.flow.write_paused

    def _on_gone(self, cycle: RequestResponseCycle, call: Callable[[], None]) -> None:
        """See `ON_GONE`. Reading goes on: a disconnect shows nowhere else."""
        self.flow.resume_reading()
        if cycle.disconnected:
            call()
        else:
            self._gone = (cycle, call)

    def on_response_complete(self) -> None:
        """Nobody answers the client any more."""
        self._gone = None
        super().on_response_complete()

    def _tell_gone(self) -> None:
        """The client is gone: tell whoever answers it."""
        if self._gone is None:
            return
        cycle, call = self._gone
        if cycle.disconnected:
            self._gone = None
            call()

    def _hand_over(self) -> Streams:
        """The connection as streams, from the bytes after the head on; HTTP ends here."""
        self._stop_timers()
        self._offers_connection = False
        self.flow.resume_reading()
        self.cycle.disconnected = True  # uvicorn expects no answer any more
        reader = asyncio.StreamReader(limit=BUFFER_BYTES, loop=self.loop)
        protocol = _Upgraded(reader, self)
        self.transport.set_protocol(protocol)
        protocol.connection_made(self.transport)
        if self._early:
            reader.feed_data(self._early)
            self._early = b""
        if self.transport.is_closing():
            reader.feed_eof()
        return reader, asyncio.StreamWriter(self.transport, protocol, reader, self.loop)

    def _limit_wait(self) -> None:
        """Bound what is not a body, and the wait for the rest of a request or for the next one."""
        if self._unread_bytes > self._max_head_bytes:
            what = "request head"
            if self._in_body:
                what = "extensions or trailers of the chunked body"
            limit = f"{self._limits.max_head_kb:g} KiB (server.max_head_kb)"
            self._refuse(HeadTooLarge(f"the {what}: more than {limit}"))
        elif self._in_body or self._unread_bytes <= 0:
            self._wait_for_bytes()
        elif self._head_timer is None and not self._answering:
            self._head_timer = self.loop.call_later(self._limits.max_head_s, self._head_is_late)

    def _wait_for_bytes(self) -> None:
        self.timeout_keep_alive_task = self.loop.call_later(
            self._limits.keep_alive_s, self.timeout_keep_alive_handler
        )

    def timeout_keep_alive_handler(self) -> None:
        """Close a silent connection; if its silence is ours to end, wait on."""
        if not (self._answering and self._in_body):
            super().timeout_keep_alive_handler()
        elif self.flow.read_paused or self.cycle.response_started:
            self._wait_for_bytes()
        else:
            limit = f"{self._limits.keep_alive_s:g} s (server.keep_alive_s)"
            self._refuse(RequestTooSlow(f"nothing more of the body arrived for {limit}"))

    def _head_is_late(self) -> None:
        limit = f"{self._limits.max_head_s:g} s (server.max_head_s)"
        self._refuse(RequestTooSlow(f"the request head did not arrive within {limit}"))

    def _stop_timers(self) -> None:
        self._unset_keepalive_if_required()
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _refuse(self, error: GatewayError) -> None:
        """Answer with an error, and close when the requests before it have their answers."""
        self._deaf = True
        self._stop_timers()
        if self.transport.is_closing():
            return
        self._refused(error)
        if self._answering and not self._in_body:
            self.cycle.keep_alive = False
            return
        if self._answering:  # the request itself is broken: its handler learns of a disconnect
            self.cycle.disconnected = True
            self.cycle.message_event.set()
            self._tell_gone()
            if self.cycle.response_started or self.pipeline:
                self.transport.close()
                return
        self._answer_and_close(error)

    def _answer_and_close(self, error: GatewayError) -> None:
        body = error.body()
        headers = {"content-type": "application/json", **dict(error.headers)}
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        self.transport.write(
            b"%b%bcontent-length: %d\r\nconnection: close\r\n\r\n%b"
            % (STATUS_LINE[error.status], lines.encode("latin-1"), len(body), body)
        )
        if self.transport.can_write_eof():
            self.transport.write_eof()
            self.timeout_keep_alive_task = self.loop.call_later(_LINGER_S, self.transport.close)
        else:
            self.transport.close()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        if cycle.scope["http_version"] == "1.0":
            app = _Unframed(app, cycle)
        super()._start_asgi_task(cycle, app)

    def _without_offer(self, rest: bytes) -> None:
        method = self.parser.get_method()
        version = self.parser.get_http_version().encode()
        lines = [b"%b %b HTTP/%b" % (method, self.url, version)]
        lines += [b"%b: %b" % (k, v) for k, v in self.headers if k not in _OFFER]
        self.parser = httptools.HttpRequestParser(self)
        self.data_received(b"\r\n".join([*lines, b"", b""]) + rest)


class _Upgraded(asyncio.StreamReaderProtocol):
    """A connection that is no longer HTTP; the server still counts it as open."""

    def __init__(self, reader: asyncio.StreamReader, http: HttpProtocol):
        super().__init__(reader, loop=http.loop)
        self._http = http

    def connection_lost(self, exc: Exception | None) -> None:
        """End the streams, and tell the server."""
        super().connection_lost(exc)
        self._http.connection_lost(exc)


class _Unframed:
    """Ends an answer of unknown length by closing the connection: HTTP/1.0 has no chunks."""

    def __init__(self, app: Any, cycle: RequestResponseCycle):
        self._app = app
        self._cycle = cycle

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        cycle = self._cycle
        unframed = False

        async def plain(message: Message) -> None:
            nonlocal unframed
            if message["type"] == "http.response.start":
                unframed = not any(name == b"content-length" for name, _ in message["headers"])
                if unframed:
                    cycle.chunked_encoding = False
                    cycle.expected_content_length = sys.maxsize
            elif unframed and not message.get("more_body"):
                cycle.expected_content_length = len(message.get("body", b""))
            await send(message)

        await self._app(scope, receive, plain)


_VERSIONS = ("1.1", "1.0")
_ABSOLUTE = re.compile(rb"https?://([^/?#]*)", re.IGNORECASE)


def check_head(method: bytes, version: str, target: bytes, headers: RawHeaders) -> None:
    """Refuse a head that two readers may understand differently, or that asks for no resource.
    Raises: MethodNotAllowed: CONNECT, which asks for a tunnel. BadRequest: a version other than
    HTTP/1.0 and 1.1; no `Host`, several, or one that is no name (RFC 9112 section 3.2); or the
    target names another host or has a fragment."""
    if method == b"CONNECT":
        raise not_offered("CONNECT")
    if version not in _VERSIONS:
        raise BadRequest(f"HTTP/{version} is not supported, only HTTP/1.1 and HTTP/1.0")
    hosts = [value for name, value in headers if name == b"host"]
    if len(hosts) != 1 and (hosts or version == "1.1"):
        if not hosts:
            count = "no Host header"
        else:
            count = f"{len(hosts)} Host headers"
        raise BadRequest(f"the request has {count}, and needs one (RFC 9112 section 3.2)")
    if hosts and not host_name(hosts[0]):
        raise BadRequest("the Host header is not a host name with an optional port")
    if b"#" in target:  # which some servers cut off, and others take for a part of the path
        raise BadRequest("the request's target has a fragment (RFC 9112 section 3.2)")
    if not target.startswith(b"/"):
        _check_target(method, target, hosts)


def check_size(size: int, fields: int, limits: ServerSettings) -> None:
    """Refuse a head that is too large. Raises: HeadTooLarge: `size` bytes or `fields` are more than
    the settings allow."""
    if size > limits.max_head_kb * 1024:
        raise HeadTooLarge(
            f"the request line and its headers are larger than {limits.max_head_kb:g} KiB "
            "(server.max_head_kb)"
        )
    if fields > limits.max_head_fields:
        raise HeadTooLarge(
            f"the request has more than {limits.max_head_fields} headers (server.max_head_fields)"
        )


def _check_target(method: bytes, target: bytes, hosts: list[bytes]) -> None:
    """An absolute target replaces `Host` (RFC 9112 section 3.2.2), so the two have to agree."""
    if target == b"*" and method == b"OPTIONS":
        return
    found = _ABSOLUTE.match(target)
    if found is None:
        raise BadRequest("the request's target is neither a path nor a URL")
    if [found[1].lower()] != [host.lower() for host in hosts]:
        raise BadRequest("the request's target names another host than its Host header")
