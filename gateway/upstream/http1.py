"""One request and its answer over HTTP/1.1, on a connection of the pool.

What came in one read is joined, and can be passed on without waking the task that waits for it
(`pass_to`): readers that make calls for each chunk of an answer cost ten times as much."""

import asyncio
import re
import select
from collections.abc import AsyncIterator, Callable
from math import inf
from typing import Any, cast

import httptools

from gateway.errors import UpstreamMalformed, UpstreamTimeout
from gateway.values import FieldDict
from gateway.wire.headers import RawHeaders

# The empty line behind a head, with the end of the line before it.
_HEAD_END = re.compile(rb"\n\r?\n")
# Of versions that are read as HTTP/1.1.
_NEWER = re.compile(rb"HTTP/1\.[2-9](?= )")
_LENGTH = re.compile(rb"content-length:", re.IGNORECASE)

# Takes the next bytes of an answer; False: not these, the reading task has to handle them.
Sink = Callable[[bytes], bool]
_BUFFER_BYTES = 2**17  # more is not read ahead of a slow client: it is one read of uvloop
# Longest head, and longest part without content of what follows it: trailers, what frames chunks.
# More than any server sends, and little enough for as many connections as there may be.
_MAX_HEAD_BYTES = 2**18
# A shorter body is copied behind its head; a longer one goes out with it uncopied.
_JOINED_BYTES = 2**13
# RFC 9110, 15.3.5 and 15.4.5; a 304 may name the length of what it stands for.
BODILESS = (204, 304)
# The end of a chunk, or of the head, and the size of the next chunk with its extensions, between
# whose parts there may be white space (RFC 9112 section 7.1.1).
_SIZE = re.compile(rb"\r?\n([0-9A-Fa-f]+)[ \t]*(?:;[^\r\n]*)?\r?\n").match
_PART_OF_SIZE = re.compile(rb"\r?|\r?\n(?:[0-9A-Fa-f]+[ \t]*(?:;[^\r\n]*)?\r?)?").fullmatch


class IdleGuard:
    """Ends a `with` block with TimeoutError when it lasts longer than a limit. `limit_s` counts
    from the start of each block, `total_s` from the creation of the guard; 0 is no limit. There is
    one timer per stream, which checks the clock when it fires, instead of one per chunk: a stream
    of a thousand chunks needs a handful of timers."""

    def __init__(self, limit_s: float, total_s: float = 0):
        self.limit_s = limit_s
        self.total_s = total_s
        self._loop = asyncio.get_running_loop()
        if total_s:
            self._ends_at = self._loop.time() + total_s
        else:
            self._ends_at = inf
        self._task: asyncio.Task[Any] | None = None
        self._entered = 0.0
        self._handle: asyncio.TimerHandle | None = None
        self._expired = False

    def __enter__(self) -> None:
        if self.limit_s or self.total_s:
            self._entered = self._loop.time()
            self._task = asyncio.current_task()
            if self._handle is None:
                self._handle = self._loop.call_at(self._due(), self._ring)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        task = self._task
        self._task = None
        if self._expired and task is not None:
            self._expired = False
            if task.uncancel() == 0 and kind is asyncio.CancelledError:
                raise TimeoutError

    @property
    def verdict(self) -> str:
        """The limit that a block with TimeoutError exceeded, in words, with its setting."""
        if self._loop.time() >= self._ends_at:
            return f"took longer than {self.total_s:g} s (timeouts.total_s)"
        return f"stalled for {self.limit_s:g} s (timeouts.idle_s)"

    def restart(self) -> None:
        """Count the limit of the block that is running from now."""
        self._entered = self._loop.time()

    def relimit(self, limit_s: float) -> None:
        """Set the limit of the next blocks."""
        self.stop()
        self.limit_s = limit_s

    def stop(self) -> None:
        """Disarm the timer."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _due(self) -> float:
        if self._task is not None:
            start = self._entered
        else:
            start = self._loop.time()
        return min(start + self.limit_s if self.limit_s else inf, self._ends_at)

    def _ring(self) -> None:
        self._handle = None
        due = self._due()
        if due > self._loop.time():
            self._handle = self._loop.call_at(due, self._ring)
        elif self._task is not None:
            self._expired = True
            self._task.cancel()


class PooledConnection(asyncio.Protocol):
    """A connection to an upstream; an `Http1Answer` reads it while a request is under way."""

    # reads it while a request is under way; None while it is idle
    answer: "Http1Answer | None" = None
    transport: asyncio.Transport | None = None  # None before it is open
    is_used = False  # whether a request has been sent over it
    has_spoken = False  # whether bytes have come that nobody asked for
    idle_until = 0.0  # when it is closed unless it is used again, in the loop's seconds

    def __init__(self, give_back: "Callable[[PooledConnection, bool], None]"):
        self._give_back = give_back
        self._is_full = False
        self._drained: asyncio.Future[None] | None = None

    @property
    def is_open(self) -> bool:
        """Whether it can be written to."""
        return self.transport is not None and not self.transport.is_closing()

    def is_quiet(self) -> bool:
        """Whether it is open, and nothing that is not read yet has come on it, not even an end: it
        would be taken for the answer to the next request."""
        if self.transport is None or self.transport.is_closing():
            return False
        poll = select.poll()
        poll.register(self.transport.get_extra_info("socket").fileno(), select.POLLIN)
        return not poll.poll(0)

    def release(self, *, reusable: bool) -> None:
        """Give it back to the pool, which closes one that cannot be used again."""
        self.answer = None
        self._give_back(self, reusable)

    def close(self) -> None:
        """Close it; what has been written is sent before."""
        if self.transport is not None:
            self.transport.close()

    async def drain(self) -> None:
        """Wait until more may be written. Raises: ConnectionResetError when it is closed."""
        if self.transport is None:
            raise ConnectionResetError
        if self._is_full:
            self._drained = asyncio.get_running_loop().create_future()
            await self._drained

    # From the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Note the transport."""
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Give the bytes to their reader. What comes unasked would be read as the answer to the
        next request, which may be another client's: the connection is closed instead."""
        if self.answer is not None:
            self.answer.data_received(data)
        else:
            self.has_spoken = True
            self.close()

    def pause_writing(self) -> None:
        """Have `drain` wait."""
        self._is_full = True

    def resume_writing(self) -> None:
        """Have `drain` return."""
        self._is_full = False
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Inform the reader, the writer and the pool."""
        self.transport = None
        if self._drained is not None and not self._drained.done():
            self._drained.set_exception(ConnectionResetError())
        if self.answer is not None:
            self.answer.connection_lost(exc)
        self._give_back(self, False)


class Http1Answer:
    """The answer to one request, relayed byte for byte: nothing is decompressed or re-chunked.
    `fields` are its headers as they were sent, `headers` those to relay."""

    def __init__(
        self, connection: PooledConnection, guard: IdleGuard, *, without_body: bool = False
    ):
        self.status = 0
        self.fields: RawHeaders = []
        self.headers: RawHeaders = []
        self.usage: FieldDict | None = None
        self._connection = connection
        self._guard = guard
        self._parts: list[bytes] = []
        self._size = 0
        self._sink: Sink | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._failure: BaseException | None = None
        self._has_head = self._whole = self._reusable = self._paused = False
        self._sender: asyncio.Task[None] | None = None  # while a long request is sent
        self._without_body = without_body  # as the answer to HEAD is
        self._take: Callable[[bytes], None] = self._take_head
        self._rest = b""  # what has come of a head, of a line between chunks, or of trailers
        self._left = 0  # of the body, or of a chunk
        self._silent = 0
        connection.answer = self

    async def ask(self, head: bytes, body: bytes | AsyncIterator[bytes], *, chunked: bool) -> None:
        """Send the request, and wait for the head of its answer, in a block of the guard.
        `chunked`: a body that arrives piece by piece goes out in chunks. Raises: OSError: the
        connection was closed before that; ValueError: what was sent is not HTTP."""
        transport = self._connection.transport
        if transport is None:
            raise ConnectionResetError
        if not isinstance(body, bytes) or len(body) >= _BUFFER_BYTES:
            self._sender = asyncio.ensure_future(self._send(head, body, chunked=chunked))
            self._sender.add_done_callback(self._sent)
        elif len(body) < _JOINED_BYTES:
            transport.write(head + body)
        else:
            transport.writelines((head, body))
        while not self._has_head:
            if self._failure is not None:
                raise self._failure
            await self._arrival()

    async def _send(
        self, head: bytes, body: bytes | AsyncIterator[bytes], *, chunked: bool
    ) -> None:
        """Send a long body piece by piece, also while the answer arrives. The head goes with the
        first piece: a body that cannot be read is not begun."""
        transport = self._connection.transport
        drain = self._connection.drain
        assert transport is not None
        if isinstance(body, bytes):
            transport.write(head)
            for start in range(0, len(body), _BUFFER_BYTES):
                transport.write(body[start : start + _BUFFER_BYTES])
                await drain()
            return
        async for piece in body:
            if piece:
                framed = piece
                if chunked:
                    framed = b"%x\r\n%b\r\n" % (len(piece), piece)
                transport.write(head + framed)
                head = b""
                await drain()
        transport.write(head + (b"0\r\n\r\n" if chunked else b""))

    def _sent(self, sender: asyncio.Task[None]) -> None:
        """Note that the request is written. If writing it failed, its answer fails, too."""
        if sender.cancelled():
            return
        if (cut := sender.exception()) is None:
            self._sender = None
        elif not self._whole:
            self._fail(cut)

    def _stop_sending(self) -> None:
        if self._sender is not None:
            self._sender.cancel()

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
            transport = self._connection.transport
            if transport is not None and not transport.is_closing():
                transport.resume_reading()
        return chunk

    async def beginning(self, limit_s: float, is_enough: Callable[[bytes], bool]) -> bytes:
        """Returns the beginning of the body without consuming it: when `is_enough` of it has
        come, at its end, or after `limit_s` seconds."""
        timer = None
        ends_at = inf  # no context of asyncio's: it makes fifteen calls
        while True:
            content = b"".join(self._parts)
            if self._whole or self._failure or is_enough(content):
                break
            loop = asyncio.get_running_loop()
            if timer is None:
                ends_at = loop.time() + limit_s
                timer = loop.call_at(ends_at, self._wake)
            elif loop.time() >= ends_at:
                break
            await self._arrival()
        if timer is not None:
            timer.cancel()
        return content

    async def aclose(self) -> None:
        """Close the connection, unless the answer has been read to its end."""
        self._guard.stop()
        self._stop_sending()
        self._sink = None
        if not self._whole:
            self._connection.release(reusable=False)

    async def _arrival(self) -> None:
        """Wait for bytes, the end, or a failure."""
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    # From the connection

    def data_received(self, data: bytes) -> None:
        """Parse; give the content to whoever waits for it."""
        try:
            self._take(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade, ValueError) as exc:
            if not self._whole:
                self._fail(ValueError(f"not HTTP: {exc}"))
                return
            self._reusable = False
        if self._whole:
            self._release()
        elif self._parts:
            self._silent = 0
        else:  # a head, or what is between pieces of content
            self._silent += len(data)
            if self._silent > _MAX_HEAD_BYTES:
                self._fail(ValueError("the head is too large"))
                return
        waiter = self._waiter
        if waiter is None or waiter.done():
            self._size += len(data)
            if self._size > _BUFFER_BYTES and not (self._paused or self._whole):
                self._pause()
        elif self._sink is None or not self._parts:
            if self._parts or self._whole:
                waiter.set_result(None)
        elif not self._passed_on(self._sink):
            waiter.set_result(None)

    def connection_lost(self, exc: BaseException | None) -> None:
        """The end of an answer without a length; else it has broken off."""
        if self._whole:
            return
        if self._failure is None and self._take == self._take_all:
            self._whole = True
            self._release()
            self._wake()
        else:
            self._fail(ConnectionResetError(*(exc.args if isinstance(exc, OSError) else ())))

    def _take_head(self, data: bytes) -> None:
        """Parse heads as soon as each is whole, until one is not informational. Raises: ValueError,
        HttpParserError, HttpParserUpgrade: it is no answer."""
        searched = max(len(self._rest) - 3, 0)
        self._rest += data
        while True:
            if self._rest[:1] in (b"\r", b"\n"):  # some servers end a body with an empty line
                self._rest = self._rest.lstrip(b"\r\n")
                searched = 0
            if not b"HTTP/1.".startswith(self._rest[:7]):
                raise ValueError("no status line")
            end = _HEAD_END.search(self._rest, searched)
            if end is None:
                return
            head = self._rest[: end.end()]
            self._rest = self._rest[end.end() :]
            searched = 0
            self._parse(head)
            if not 100 <= self.status < 200 or self.status == 101:  # RFC 9110 section 15.2
                self._begin_body()
                return
            self.fields.clear()

    def _parse(self, head: bytes) -> None:
        """Parse one head; one that is refused once more, as a strict parser reads it."""
        try:
            self._parse_strictly(head)
        except httptools.HttpParserError:
            self.fields.clear()
            self._parse_strictly(_mended(head))

    def _parse_strictly(self, head: bytes) -> None:
        parser = httptools.HttpResponseParser(self)
        parser.set_dangerous_leniencies(
            lenient_chunked_length=True,  # a length beside chunks does not count (RFC 9112, 6.3)
            lenient_headers=True,
            lenient_optional_cr_before_lf=True,
        )
        parser.feed_data(head)
        self.status = parser.get_status_code()
        self._reusable = parser.should_keep_alive()

    def _begin_body(self) -> None:
        """Choose how the body is read (RFC 9112 section 6.3). Raises: ValueError."""
        behind = self._rest
        self._rest = b""
        self._silent = 0
        codings = [value for name, value in self.fields if name.lower() == b"transfer-encoding"]
        words = {word.strip(b" \t\r\n") for word in b",".join(codings).lower().split(b",")}
        named = words - {b"", b"identity"}  # those change nothing
        lengths = [value for name, value in self.fields if name.lower() == b"content-length"]
        if not all(value.strip().isdigit() for value in lengths):
            raise ValueError("a length is no number")
        if self._without_body or self.status in BODILESS:
            self._take = self._take_length
        elif named:
            if named != {b"chunked"}:
                raise ValueError("a transfer coding that was not asked for")
            self._take = self._take_chunks
            behind = b"\r\n" + behind  # as between two chunks
            if lengths:  # not every reader lets the chunks count
                self._reusable = False
        elif lengths:
            self._take = self._take_length
            self._left = int(lengths[0])
        else:
            self._take = self._take_all
            self._reusable = False
        self._has_head = True
        self._wake()
        self._take(behind)

    def _take_all(self, data: bytes) -> None:
        """Read a body that ends with its connection."""
        if data:
            self._parts.append(data)

    def _take_length(self, data: bytes) -> None:
        """Read a body of a known length."""
        left = self._left
        if data and left:
            self._parts.append(data if len(data) <= left else data[:left])
        self._left = max(left - len(data), 0)
        if not self._left:
            self._end(clean=len(data) <= left)

    def _take_chunks(self, data: bytes) -> None:
        """Read a body in chunks. Raises: ValueError for what is none."""
        if self._rest:
            data = self._rest + data
            self._rest = b""
        at = 0
        left = self._left
        while True:
            if left:
                piece = data[at : at + left]
                if piece:
                    self._parts.append(piece)
                    left -= len(piece)
                    at += len(piece)
                if left:
                    break
            found = _SIZE(data, at)
            if found is None:
                self._rest = data[at:]
                if _PART_OF_SIZE(self._rest) is None:
                    raise ValueError("a chunk has no size, or another one")
                break
            at = found.end()
            left = int(found[1], 16)
            if not left:
                self._take = self._take_trailers
                self._take_trailers(data[at - 1 :])
                break
        self._left = left

    def _take_trailers(self, data: bytes) -> None:
        """Read up to the empty line that ends the trailers; none of them is passed on."""
        searched = max(len(self._rest) - 3, 0)
        self._rest += data
        end = _HEAD_END.search(self._rest, searched)
        if end is not None:
            self._end(clean=end.end() == len(self._rest))

    def _end(self, *, clean: bool) -> None:
        """Note the end; `clean`: nothing has come behind it, which nobody asked for."""
        self._whole = True
        self._reusable = self._reusable and clean and self._sender is None
        self._take = self._take_more

    def _take_more(self, _data: bytes) -> None:
        """Take what comes behind the end: no part of the answer."""
        self._reusable = False

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

    def _pause(self) -> None:
        """Stop reading: the client is slower than the upstream."""
        transport = self._connection.transport
        if transport is not None and not transport.is_closing():
            self._paused = True
            transport.pause_reading()

    def _fail(self, failure: BaseException) -> None:
        self._failure = self._failure or failure  # the first, not the close that follows it
        if self._connection.transport is not None:
            self._connection.transport.close()
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _release(self) -> None:
        """Give the connection back to the pool, or close it."""
        if self._connection.answer is self:
            self._stop_sending()
            self._connection.release(reusable=self._reusable)

    # From the parser

    def on_header(self, name: bytes, value: bytes) -> None:
        """Collect. Raises: ValueError for a head that is not text."""
        if value.find(b"\0") >= 0:  # `in` costs ten times as much (wire/response_tee.py)
            raise ValueError("a header contains a NUL")
        self.fields.append((name, value.strip(b" \t")))


class Handover(Http1Answer):
    """An answer after which the connection is the caller's, if its status is one of `statuses`. It
    answers CONNECT, or a request for a WebSocket. `early`: what has come behind its head."""

    def __init__(self, connection: PooledConnection, guard: IdleGuard, statuses: range):
        super().__init__(connection, guard)
        self._statuses = statuses
        self.reason = self.early = b""

    def on_status(self, reason: bytes) -> None:
        """Take a part of the reason."""
        self.reason += reason

    def taken_over(self) -> asyncio.Transport:
        """The transport, whose bytes this answer no longer reads. Raises: ConnectionResetError."""
        self._connection.answer = None
        transport = self._connection.transport
        if transport is None:
            raise ConnectionResetError
        return transport

    def _parse(self, head: bytes) -> None:
        try:
            super()._parse(head)
        except httptools.HttpParserUpgrade:  # of no other status
            self.status = 101

    def _begin_body(self) -> None:
        if self.status not in self._statuses:
            super()._begin_body()
            return
        self.early = self._rest
        self._take = self._keep
        self._has_head = True
        self._wake()

    def _keep(self, data: bytes) -> None:
        self.early += data


def _mended(head: bytes) -> bytes:
    """A head as a strict parser reads it: a version 1.2 to 1.9 is 1.1 (RFC 9110 section 2.5), and a
    length that is given several times is given once (RFC 9112 section 6.3). Raises: ValueError: the
    lengths differ, or are no numbers."""
    lines = []
    values = []
    for line in _NEWER.sub(b"HTTP/1.1", head, count=1).splitlines(keepends=True):
        if _LENGTH.match(line):
            values += [value.strip() for value in line.partition(b":")[2].split(b",")]
        else:
            lines.append(line)
    if not values:
        return b"".join(lines)
    if len(set(values)) > 1 or not values[0].isdigit():
        raise ValueError("the lengths of the answer differ, or are no numbers")
    return lines[0] + b"content-length: " + values[0] + b"\r\n" + b"".join(lines[1:])
