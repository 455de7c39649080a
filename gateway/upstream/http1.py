"""One request and its answer over HTTP/1.1, on a connection of aiohttp's pool.

aiohttp's own reader makes more than ten calls for each chunk of an answer. This one joins what came
in one read, and can pass it on without waking the task that waits for it (`pass_to`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

import aiohttp
import httptools
from aiohttp.client_proto import ResponseHandler
from aiohttp.connector import Connection

from gateway.errors import UpstreamMalformed, UpstreamTimeout
from gateway.upstream.base import RawHeaders
from gateway.upstream.idle import IdleGuard
from gateway.upstream.odd_heads import has_tab_in_coding, mended

Sink = Callable[[bytes], bool]
"""Takes the next bytes of an answer; False: not these, the reading task has to handle them."""

_BUFFER_BYTES: Final = 2**18
"""As much is read ahead of a slow client."""
_MAX_HEAD_BYTES: Final = 2**18
"""Longest head, and longest part without content of what follows it: trailers, what frames chunks.
More than any server sends, and little enough for as many connections as there may be."""
_JOINED_BYTES: Final = 2**13
"""A shorter body is copied behind its head; a longer one goes out with it uncopied."""
_FRAMES: Final = frozenset({b"content-length", b"transfer-encoding"})
"""Each says where a body ends; of an answer with both it is not certain for every reader."""


class PooledConnection(ResponseHandler):
    """A connection that is read by an `Http1Answer`, or by aiohttp while it has none."""

    answer: Http1Answer | None = None
    is_used = False
    """Whether a request has been sent over it."""

    is_idle = False
    """Whether it is in the pool, where nothing may come that was not asked for."""

    def data_received(self, data: bytes) -> None:
        """Give the bytes to their reader.

        What comes unasked would be read as the answer to the next request, which may be another
        client's: the connection is closed instead.
        """
        if self.answer is not None:
            self.answer.data_received(data)
        elif self.is_idle:
            self.close()
        else:
            super().data_received(data)

    def set_response_params(self, **params: Any) -> None:
        """Begin to read with aiohttp."""
        self.is_idle = False
        super().set_response_params(**params)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Tell the reader, too."""
        answer = self.answer
        super().connection_lost(exc)
        if answer is not None:
            answer.connection_lost(exc)

    @property
    def should_close(self) -> bool:
        """Whether the connection cannot be used again."""
        return self.answer is not None or super().should_close


class Http1Answer:
    """The answer to one request, relayed byte for byte: nothing is decompressed or re-chunked.

    `fields` are its headers as they were sent, `headers` those to relay.
    """

    __slots__ = (
        "_connection",
        "_failure",
        "_guard",
        "_has_head",
        "_head",
        "_is_odd",
        "_loop",
        "_parser",
        "_parts",
        "_paused",
        "_protocol",
        "_reusable",
        "_sending",
        "_silent",
        "_sink",
        "_size",
        "_waiter",
        "_whole",
        "fields",
        "headers",
        "on_body",
        "status",
        "usage",
    )

    def __init__(self, connection: Connection, guard: IdleGuard) -> None:
        protocol = connection.protocol
        assert isinstance(protocol, PooledConnection)
        self.status = 0
        self.fields: RawHeaders = []
        self.headers: RawHeaders = []
        self.usage: dict[str, Any] | None = None
        self._connection: Connection | None = connection
        self._protocol = protocol
        self._guard = guard
        self._loop = asyncio.get_running_loop()
        self._parts: list[bytes] = []
        self.on_body = self._parts.append
        self._size = 0
        self._sink: Sink | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._failure: BaseException | None = None
        self._has_head = self._whole = self._reusable = self._paused = self._sending = False
        self._head = b""  # what has come, until its end
        self._is_odd = False
        self._silent = 0
        self._parser = self._new_parser()
        protocol.answer = self
        protocol.is_idle = False

    async def ask(self, head: bytes, body: bytes) -> None:
        """Send the request, and wait for the head of its answer, in a block of the guard.

        Raises:
            aiohttp.ClientError, OSError: the connection was closed before that.
            ValueError: what was sent is not HTTP.
        """
        transport = self._protocol.transport
        if transport is None:
            raise aiohttp.ServerDisconnectedError
        if len(body) < _JOINED_BYTES:
            transport.write(head + body)
        elif len(body) < _BUFFER_BYTES:
            transport.writelines((head, body))
        else:
            await self._send(transport, head, body)
        while not self._has_head:
            if self._failure is not None:
                raise self._failure
            await self._arrival()

    async def _send(self, transport: asyncio.WriteTransport, head: bytes, body: bytes) -> None:
        """Send a long body piece by piece, at most until the answer begins: mostly a refusal."""
        self._sending = True
        transport.write(head)
        for start in range(0, len(body), _BUFFER_BYTES):
            transport.write(body[start : start + _BUFFER_BYTES])
            drained = asyncio.ensure_future(self._protocol._drain_helper())
            try:
                self._waiter = self._loop.create_future()
                await asyncio.wait({drained, self._waiter}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                self._waiter = None
                drained.cancel()
            if self._has_head or self._failure is not None:
                return  # the connection is closed behind the answer
        self._sending = False

    def pass_to(self, sink: Sink | None) -> None:
        """Have what arrives go to `sink` while the reading task waits; None: to the task again."""
        self._sink = sink

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        while not self._parts:
            if self._failure is not None:
                broken = "the upstream's answer broke off before its end"
                raise UpstreamMalformed(broken) from self._failure
            if self._whole:
                raise StopAsyncIteration
            try:
                with self._guard:
                    await self._arrival()
            except TimeoutError as exc:
                raise UpstreamTimeout(f"the upstream {self._guard.verdict}") from exc
        chunk = b"".join(self._parts)
        self._parts.clear()
        self._size = 0
        if self._paused:
            self._paused = False
            transport = self._protocol.transport
            if transport is not None and not transport.is_closing():
                transport.resume_reading()
        return chunk

    async def aclose(self) -> None:
        """Close the connection, unless the answer has been read to its end."""
        self._guard.stop()
        self._sink = None
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    async def _arrival(self) -> None:
        """Wait for bytes, the end, or a failure."""
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    # From the connection

    def data_received(self, data: bytes) -> None:
        """Parse; give the content to whoever waits for it."""
        try:
            if self._has_head:
                self._parser.feed_data(data)
            else:
                self._read_head(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade, ValueError) as exc:
            if not self._whole:
                self._fail(ValueError(f"not HTTP: {exc}"))
                return
            self._reusable = False
        if self._whole:
            self._release()
        elif self._parts:
            self._silent = 0
        elif not self._stays_short(len(data)):
            return
        waiter = self._waiter
        if waiter is None or waiter.done():
            self._bound(len(data))
        elif self._sink is None or not self._parts:
            if self._parts or self._whole:
                waiter.set_result(None)
        elif not self._passed_on(self._sink):
            waiter.set_result(None)

    def connection_lost(self, exc: BaseException | None) -> None:
        """The end of an answer without a length; else it has broken off."""
        if self._whole:
            return
        if self._has_head and self._failure is None and not self._is_framed():
            self._whole = True
            self._release()
            self._wake()
        elif isinstance(exc, OSError):
            self._fail(aiohttp.ClientOSError(*exc.args))
        else:
            self._fail(aiohttp.ServerDisconnectedError())

    def _new_parser(self) -> Any:
        parser = httptools.HttpResponseParser(self)
        parser.set_dangerous_leniencies(
            lenient_chunked_length=True,  # a length beside chunks does not count (RFC 9112, 6.3)
            lenient_headers=True,
            lenient_optional_cr_before_lf=True,
            lenient_spaces_after_chunk_size=True,
        )
        return parser

    def _read_head(self, data: bytes) -> None:
        """Parse; a head that is refused once more, when it is there as a whole (`odd_heads.py`).

        Raises: ValueError, HttpParserError, HttpParserUpgrade: it is no answer.
        """
        self._head += data
        # `find`: see on_header. A tab is rare in a head, and what is behind one is searched.
        if self._head.find(b"\t") >= 0 and not self._is_odd:
            self._is_odd = has_tab_in_coding(self._head)
        if not self._is_odd:
            try:
                self._parser.feed_data(data)
            except httptools.HttpParserError:
                if self._has_head:  # what follows the head is wrong
                    raise
                self._is_odd = True
        if self._is_odd and (whole := mended(self._head)) is not None:
            self._is_odd = False
            self.fields.clear()
            self._parser = self._new_parser()
            self._parser.feed_data(whole)
        if self._has_head:
            self._head, self._silent = b"", 0

    def _stays_short(self, size: int) -> bool:
        """Whether a head, or what is between pieces of content, may go on."""
        self._silent += size
        if self._silent <= _MAX_HEAD_BYTES:
            return True
        self._fail(ValueError("the head is too large"))
        return False

    def _passed_on(self, sink: Sink) -> bool:
        """Whether the sink has taken what has arrived, and the task need not wake."""
        try:
            passed = sink(b"".join(self._parts))
        except Exception as exc:
            self._parts.clear()
            self._failure = exc
            return False
        if not passed:
            return False
        self._parts.clear()
        self._guard.restart()
        return not self._whole

    def _bound(self, size: int) -> None:
        """Stop reading when the client is slower than the upstream."""
        self._size += size
        if self._size > _BUFFER_BYTES and not (self._paused or self._whole):
            transport = self._protocol.transport
            if transport is not None and not transport.is_closing():
                self._paused = True
                transport.pause_reading()

    def _fail(self, failure: BaseException) -> None:
        self._failure = self._failure or failure  # the first, not the close that follows it
        if self._protocol.transport is not None:
            self._protocol.transport.close()
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _release(self) -> None:
        """Give the connection back to the pool, or close it."""
        self._protocol.answer = None
        connection, self._connection = self._connection, None
        if connection is None:
            return
        if self._reusable:
            connection.release()
        else:
            connection.close()

    def _is_framed(self) -> bool:
        return not _FRAMES.isdisjoint([name.lower() for name, _ in self.fields])

    # From the parser

    def on_message_begin(self) -> None:
        """Raises: ValueError for a second answer, which was not asked for: no part of the first."""
        if self._whole:
            raise ValueError("more than one answer")

    def on_header(self, name: bytes, value: bytes) -> None:
        """Collect. Raises: ValueError for a head that is not text."""
        if value.find(b"\0") >= 0:  # `in` costs ten times as much (wire/response_tee.py)
            raise ValueError("a header contains a NUL")
        if not self._has_head:
            self.fields.append((name, value.strip(b" \t")))

    def on_headers_complete(self) -> None:
        """Note the status, unless an informational answer comes first (RFC 9110 section 15.2)."""
        if self._has_head:
            return
        self.status = self._parser.get_status_code()
        if 100 <= self.status < 200 and self.status != 101:
            self.fields.clear()
        else:
            self._has_head = True
            self._wake()

    def on_message_complete(self) -> None:
        """Note the end."""
        if self._has_head and not self._whole:
            self._whole = True
            names = {name.lower() for name, _ in self.fields}
            keeps = self._parser.should_keep_alive() and not self._sending
            self._reusable = keeps and not names >= _FRAMES
