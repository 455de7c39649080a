"""One client connection of the scripted upstream: HTTP/1.1 parsing and the playing of exchanges."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections import deque
from typing import Protocol, cast

import httptools

from steering_gateway_testing.exchange import (
    LAST_CHUNK,
    Answer,
    Ending,
    FramedAnswer,
    chunk,
    frame,
    head,
)
from steering_gateway_testing.received import ReceivedRequest

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
RESET_AT_CLOSE = struct.pack("ii", 1, 0)
"""SO_LINGER switched on with zero seconds: close sends a reset instead of an orderly end."""
FLUSH_S = 0.02
"""Time for bytes already written to leave before a reset, which throws away what has not."""


class Behaviour(Protocol):
    """Who a connection reports to, and asks what to answer."""

    def opened(self, connection: Connection) -> int:
        """Note a new connection; its number."""

    def closed(self, connection: Connection) -> None:
        """Note the end of a connection."""

    def echoes(self, request: ReceivedRequest) -> bool:
        """Whether the body of a request is to be streamed back while it arrives."""

    def respond(self, request: ReceivedRequest) -> FramedAnswer:
        """Record a complete request; what to answer."""

    def abandoned(self, request: ReceivedRequest) -> None:
        """Record a request whose client went away before it was complete."""


class Connection(asyncio.Protocol):
    """Parses requests, answers them one after another, and notices when the client goes away."""

    def __init__(self, behaviour: Behaviour, loop: asyncio.AbstractEventLoop) -> None:
        self._behaviour = behaviour
        self._loop = loop
        self._waiting: deque[tuple[ReceivedRequest, bool]] = deque()
        self._current: ReceivedRequest | None = None
        self._steps: deque[bytes | float] = deque()
        self._ending = Ending.KEEP
        self._timer: asyncio.Handle | None = None
        self._writable = True
        self._incoming: ReceivedRequest | None = None
        self._echoing = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start parsing."""
        self._transport = cast(asyncio.Transport, transport)
        self._parser = httptools.HttpRequestParser(self)
        self._number = self._behaviour.opened(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell every open exchange of this connection that its client is gone."""
        if self._timer:
            self._timer.cancel()
        if self._incoming is not None:
            self._behaviour.abandoned(self._incoming)
            self._incoming.finish(disconnected=True)
        for request in (self._current, *(request for request, _ in self._waiting)):
            if request is not None:
                request.finish(disconnected=True)
        self._behaviour.closed(self)

    def data_received(self, data: bytes) -> None:
        """Feed the parser; what is no HTTP ends the connection."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._ending = Ending.CLOSE
            if self._current is None:
                self._transport.close()
        except httptools.HttpParserError:
            refusal = frame(Answer(pieces=(b"bad request",), status=400, content_type="text/plain"))
            self._transport.write(cast(bytes, refusal.numbered(0).steps[0]))
            self._transport.close()

    def pause_writing(self) -> None:
        """The client reads slower than we write: hold the exchange."""
        self._writable = False

    def resume_writing(self) -> None:
        """The client has caught up: go on."""
        self._writable = True
        if self._current is not None and self._timer is None:
            self._play()

    def abort(self) -> None:
        """Drop the connection at once, from the loop's own thread."""
        self._transport.abort()

    # Called by the parser.

    def on_message_begin(self) -> None:
        """A request line starts."""
        self._target = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._body: list[bytes] = []

    def on_url(self, url: bytes) -> None:
        """A part of the request target."""
        self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header, as sent."""
        self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        """The head of a request is whole: start an echo if it is to be one."""
        request = ReceivedRequest(
            method=self._parser.get_method().decode(),
            target=self._target.decode("latin-1"),
            headers=self._headers,
            connection=self._number,
        )
        self._incoming = request
        if request.header("expect") == "100-continue":
            self._transport.write(CONTINUE)
        self._echoing = self._current is None and self._behaviour.echoes(request)
        if self._echoing:
            kind = request.header("content-type") or "application/octet-stream"
            self._transport.write(head(Answer(pieces=(), streamed=True, content_type=kind)))

    def on_body(self, data: bytes) -> None:
        """A part of the request body."""
        self._body.append(data)
        if self._echoing:
            self._transport.write(chunk(data))

    def on_message_complete(self) -> None:
        """A request is whole: answer it when its turn comes."""
        request = self._incoming
        if request is None:
            return
        self._incoming = None
        request.body = b"".join(self._body)
        request.complete = True
        if self._echoing:
            self._behaviour.respond(request)
            self._transport.write(LAST_CHUNK)
            request.finish(disconnected=False)
            return
        self._waiting.append((request, self._parser.should_keep_alive()))
        if self._current is None:
            self._next()

    # The exchange being played.

    def _next(self) -> None:
        self._current, keep_alive = self._waiting.popleft()
        exchange = self._behaviour.respond(self._current)
        self._steps = deque(exchange.steps)
        self._ending = exchange.ending
        if exchange.ending is Ending.KEEP and not keep_alive:
            self._ending = Ending.CLOSE
        self._play()

    def _play(self) -> None:
        self._timer = None
        while self._steps and self._writable and not self._transport.is_closing():
            step = self._steps.popleft()
            if isinstance(step, float):
                self._timer = self._later(step)
                return
            self._transport.write(step)
        if self._steps or not self._writable or self._current is None:
            return
        self._end(self._current)

    def _later(self, delay_s: float) -> asyncio.Handle:
        if delay_s > 0:
            return self._loop.call_later(delay_s, self._play)
        return self._loop.call_soon(self._play)

    def _end(self, request: ReceivedRequest) -> None:
        match self._ending:
            case Ending.SILENCE:
                return
            case Ending.RESET:
                self._loop.call_later(FLUSH_S, self._reset)
            case Ending.CLOSE:
                request.finish(disconnected=False)
                self._transport.close()
            case Ending.KEEP:
                request.finish(disconnected=False)
                self._current = None
                if self._waiting:
                    self._next()

    def _reset(self) -> None:
        if self._transport.is_closing():
            return
        if self._current is not None:
            self._current.finish(disconnected=False)
        peer = self._transport.get_extra_info("socket")
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_AT_CLOSE)
        self._transport.abort()
