"""A light HTTP/1.1 client for loads: prepared bytes out, the answer's bytes counted in.

A full client would spend more CPU than the gateway it measures.
"""

from __future__ import annotations

import asyncio
import time
from typing import NamedTuple, cast

LOOPBACK = "127.0.0.1"
_LAST_CHUNK = b"0\r\n\r\n"


class Answer(NamedTuple):
    """One answer: HTTP status, seconds to its first and its last byte, and its raw bytes."""

    status: int
    first_s: float
    last_s: float
    raw: bytes


class Connection(asyncio.Protocol):
    """One keep-alive connection; one request at a time."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._parts: list[bytes] = []
        self._left: int | None = None
        self._chunked = False
        self._first = 0.0

    @classmethod
    async def open(cls, port: int) -> Connection:
        """Connect to a server on this machine."""
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(cls, LOOPBACK, port)
        return connection

    async def ask(self, request: bytes) -> Answer:
        """Send one request and wait for the whole answer.

        Raises:
            ConnectionError: the server closed before the end of the answer.
        """
        if self._transport is None:
            raise ConnectionError("closed")
        self._parts, self._left, self._first = [], None, 0.0
        self._waiter = asyncio.get_running_loop().create_future()
        started = time.perf_counter()
        self._transport.write(request)
        await self._waiter
        ended = time.perf_counter()
        raw = b"".join(self._parts)
        return Answer(int(raw[9:12]), self._first - started, ended - started, raw)

    def close(self) -> None:
        """Close the connection."""
        if self._transport is not None:
            self._transport.close()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Collect; wake the asker when the answer is whole."""
        self._parts.append(data)
        if self._left is None:
            self._first = self._first or time.perf_counter()
            if not self._read_head():
                return
        elif not self._chunked:
            self._left -= len(data)
        whole = self._ends_chunked() if self._chunked else (self._left or 0) <= 0
        if whole and self._waiter and not self._waiter.done():
            self._waiter.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail the open request."""
        self._transport = None
        if self._waiter and not self._waiter.done():
            self._waiter.set_exception(ConnectionError("closed before the end of the answer"))

    def _read_head(self) -> bool:
        raw = b"".join(self._parts)
        head, found, rest = raw.partition(b"\r\n\r\n")
        if not found:
            return False
        head = head.lower()
        self._chunked = b"transfer-encoding: chunked" in head
        length = head.partition(b"content-length:")[2].partition(b"\r\n")[0]
        self._left = 0 if self._chunked else int(length or 0) - len(rest)
        return True

    def _ends_chunked(self) -> bool:
        tail = self._parts[-1]
        if len(tail) < len(_LAST_CHUNK):
            tail = b"".join(self._parts[-6:])
        return tail.endswith(_LAST_CHUNK)


def post(path: str, body: bytes, headers: tuple[tuple[str, str], ...] = ()) -> bytes:
    """The bytes of one POST."""
    lines = [
        f"POST {path} HTTP/1.1",
        f"host: {LOOPBACK}",
        "content-type: application/json",
        "accept: application/json",
        "authorization: Bearer sk-bench-0000",
        "user-agent: bench",
        f"content-length: {len(body)}",
        *(f"{name}: {value}" for name, value in headers),
    ]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def get(path: str) -> bytes:
    """The bytes of one GET."""
    return f"GET {path} HTTP/1.1\r\nhost: {LOOPBACK}\r\n\r\n".encode()
