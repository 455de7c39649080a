"""Servers on a loopback port, for upstreams, proxies and receivers that are no scripted provider:
in threads of their own (`LoopbackServer`, `OneAnswer`), or on the event loop of a test
(`listening`)."""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Protocol, Self

from steering_gateway_testing.ports import LOOPBACK

_END_OF_HEAD = b"\r\n\r\n"
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_CHUNKED = re.compile(rb"\r\ntransfer-encoding:[^\r]*chunked", re.IGNORECASE)


class LoopbackServer:
    """Listens on a loopback port from its making to `close`, and serves each connection in a thread
    of its own.

    A subclass says in `serve` what happens on a connection, which is closed behind it; OSError and
    ValueError end it like a return. Connections come from `__init__` on: fields are set before.
    """

    def __init__(self) -> None:
        self._listener = socket.create_server((LOOPBACK, 0))
        self.port: int = self._listener.getsockname()[1]
        self._open: set[socket.socket] = set()
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def url(self) -> str:
        """`http://127.0.0.1:port`."""
        return f"http://{LOOPBACK}:{self.port}"

    def serve(self, connection: socket.socket) -> None:
        """Read from a connection and write to it, in its thread."""
        raise NotImplementedError

    def close(self) -> None:
        """Listen no longer, and break off what is open."""
        for each in (self._listener, *self._open):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                self._open.add(connection)
                threading.Thread(target=self._run, args=(connection,), daemon=True).start()

    def _run(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError, ValueError), connection:
            self.serve(connection)
        self._open.discard(connection)


class OneAnswer(LoopbackServer):
    """Answers one request of each connection, with the bytes that a function of its head and body
    returns."""

    def __init__(self, answer: Callable[[bytes, bytes], bytes]) -> None:
        self._answer = answer
        super().__init__()

    def serve(self, connection: socket.socket) -> None:
        """Read one request and answer it."""
        connection.sendall(self._answer(*read_request(connection)))


def an_answer(body: bytes = b"", *, status: int = 200, content_type: str = "text/html") -> bytes:
    """A whole answer of HTTP, behind which the connection ends."""
    head = f"HTTP/1.1 {status} -\r\ncontent-type: {content_type}\r\nconnection: close\r\n"
    return head.encode() + b"content-length: %d\r\n\r\n" % len(body) + body


@contextlib.asynccontextmanager
async def listening(
    serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
) -> AsyncIterator[int]:
    """The port of a server on the running event loop, which listens while the block runs."""
    server = await asyncio.start_server(serve, LOOPBACK, 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


class Readable(Protocol):
    """A socket, with TLS or without."""

    def recv(self, size: int, /) -> bytes:
        """At most `size` bytes; none at the end."""


def read_head(connection: Readable) -> tuple[bytes, bytes]:
    """The head of the next request with the empty line behind it, and the bytes that came with it.
    Raises: ValueError when the connection ends before."""
    received = b""
    while _END_OF_HEAD not in received:
        received += _some(connection)
    head, _, rest = received.partition(_END_OF_HEAD)
    return head + _END_OF_HEAD, rest


def read_body(connection: Readable, head: bytes, rest: bytes = b"") -> bytes:
    """The body that a head announces, in its transfer coding; `rest` came with the head. Raises:
    ValueError when the connection ends before."""
    found = _LENGTH.search(head)
    length = int(found[1]) if found else 0
    while len(rest) < length:
        rest += _some(connection)
    while _CHUNKED.search(head) and not rest.endswith(b"0" + _END_OF_HEAD):
        rest += _some(connection)
    return rest


def read_request(connection: Readable) -> tuple[bytes, bytes]:
    """Head and body of the next request. Raises: ValueError when the connection ends before."""
    head, rest = read_head(connection)
    return head, read_body(connection, head, rest)


def _some(connection: Readable) -> bytes:
    piece = connection.recv(2**16)
    if not piece:
        raise ValueError("the connection has ended")
    return piece
