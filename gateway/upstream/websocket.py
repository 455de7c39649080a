"""A WebSocket to an upstream: the handshake as HTTP, then the bytes as they are, or as messages."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from io import BytesIO
from typing import Any

from msgspec import Struct, field
from wsproto.connection import Connection, ConnectionState, ConnectionType
from wsproto.events import CloseConnection, Event, Message, TextMessage
from wsproto.frame_protocol import CloseReason
from yarl import URL

from gateway.buffered_bytes import ARRIVAL_BYTES_S, Share
from gateway.config import TimeoutSettings
from gateway.errors import Overloaded, UpstreamMalformed, UpstreamTimeout, UpstreamUnreachable
from gateway.upstream.connections import Origin, Pool
from gateway.upstream.http1 import Handover, IdleGuard
from gateway.wire.headers import RawHeaders

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]

BUFFER_BYTES = 2**16  # what one direction holds before its sender has to wait
_PIECE_BYTES = 2**12
# Frames of a message beside one for each 1024 bytes: each costs as much as 4096 bytes do, and 200
# clients with frames of one byte made all others wait 89 to 195 ms.
_MOST_FRAMES = 4096
_LATE = "the message did not arrive in time (server.max_body_s)"
_NO_ROOM = "there is no room for the message (server.max_bytes_in_flight_mb)"
# Of an answer that refuses the WebSocket, so much is relayed; it is an error message.
_MAX_REFUSAL_BYTES = 2**20


class Handshake(Struct):
    """The upstream's answer to a request for a WebSocket."""

    status: int = 0  # 101: accepted; any other: refused, and the connection is closed
    reason: bytes = b""  # phrase behind the status
    headers: RawHeaders = []  # as they came
    body: bytes = b""  # of a refusal: why
    streams: Streams | None = None  # carry the frames; None after a refusal

    def head(self, more: RawHeaders) -> bytes:
        """The status line and the headers as they came, and `more` of our own."""
        return _head(b"HTTP/1.1 %d %b" % (self.status, self.reason), [*self.headers, *more])


def _head(start: bytes, headers: RawHeaders) -> bytes:
    return b"\r\n".join([start, *(b"%b: %b" % header for header in headers), b"", b""])


async def open_websocket(url: URL, headers: RawHeaders, timeouts: TimeoutSettings) -> Handshake:
    """Ask `url` for a WebSocket. `headers`: all of the client's that the upstream may see. Raises:
    UpstreamFailure: no connection, no answer in time, or an answer that is not HTTP."""
    pool = Pool(limit=1, connect_s=timeouts.connect_s, keepalive_s=0)
    connection = await pool.connect(Origin(url.origin()))
    guard = IdleGuard(timeouts.first_byte_s)
    answer = Handover(connection, guard, range(101, 102))
    made = Handshake()
    own = [
        (b"host", (url.host_port_subcomponent or "").encode()),
        (b"connection", b"Upgrade"),
        (b"upgrade", b"websocket"),
    ]
    head = _head(b"GET %b HTTP/1.1" % url.raw_path_qs.encode(), [*own, *headers])
    try:
        with guard:
            await answer.ask(head, b"", chunked=False)
        made = Handshake(answer.status, answer.reason, answer.fields)
        if answer.status == 101:
            made.streams = _streams(answer)
            return made
        async for piece in answer:
            made.body = (made.body + piece)[:_MAX_REFUSAL_BYTES]
            if len(made.body) == _MAX_REFUSAL_BYTES:
                break
    except TimeoutError as exc:
        limit = f"{timeouts.first_byte_s:g} s (timeouts.first_byte_s)"
        raise UpstreamTimeout(f"no answer to the WebSocket request within {limit}") from exc
    except OSError as exc:
        raise UpstreamUnreachable("the upstream closed the connection before an answer") from exc
    except ValueError as exc:
        raise UpstreamMalformed("the upstream did not answer in HTTP") from exc
    finally:
        guard.stop()
        if made.streams is None:
            await answer.aclose()
    return made


def _streams(answer: Handover) -> Streams:
    """The frames behind an answer. Raises: ConnectionResetError."""
    transport = answer.taken_over()
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=BUFFER_BYTES, loop=loop)
    protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
    transport.set_protocol(protocol)
    protocol.connection_made(transport)
    reader.feed_data(answer.early)
    return reader, asyncio.StreamWriter(transport, protocol, reader, loop)


class _Arriving(Struct):
    """A message while its frames arrive."""

    # Not a list: a frame may have one byte, or none.
    parts: BytesIO = field(default_factory=BytesIO)
    frames: int = 0  # that are there whole
    late_at: float | None = None  # on the loop's clock; None before its first part


class MessageSide:
    """One side of a WebSocket past its handshake, as whole messages and control frames. `limit_mb`:
    size of the largest message; a larger one, or a broken frame, ends the connection, and so does
    one that takes too long to arrive (`server.max_body_s`) or finds no room. `share`: the room of
    the message that is arriving or being handled. `asks`: it is the upstream, whose client this
    is."""

    def __init__(self, streams: Streams, limit_mb: float, share: Share, *, asks: bool = False):
        self._streams = streams
        self._share = share
        if asks:
            kind = ConnectionType.CLIENT
        else:
            kind = ConnectionType.SERVER
        self._connection = Connection(kind)
        self._limit = int(limit_mb * 2**20)
        self._writing = asyncio.Lock()
        self._arriving = _Arriving()
        self._kept = 0

    def keep(self, size: int) -> None:
        """Count `size` bytes of messages as held until they are given back as a negative size."""
        self._kept += size
        self._share.shrink(self._kept + self._arriving.parts.tell())

    async def events(self) -> AsyncIterator[Event]:
        """Its messages, until it has closed, which is answered here, or is gone. One that is not
        kept is held until the next is asked for."""
        with suppress(OSError):
            while data := await self._read():
                if isinstance(data, bytes):
                    if len(data) == _PIECE_BYTES:  # it may be hundreds of frames
                        await self._share.give_way()
                    self._connection.receive_data(data)
                for event in [data] if isinstance(data, Event) else self._connection.events():
                    given = await self._whole(event) if isinstance(event, Message) else event
                    if given is None:
                        continue
                    if isinstance(given, CloseConnection):
                        await self.send(given)
                    yield given
                    self.keep(0)
                    if isinstance(given, CloseConnection):
                        return

    async def _read(self) -> bytes | Event:
        """The bytes that have arrived, none at the end; the end of it all, if a message is late."""
        try:
            async with asyncio.timeout_at(self._arriving.late_at):
                return await self._streams[0].read(_PIECE_BYTES)
        except TimeoutError:
            return CloseConnection(CloseReason.POLICY_VIOLATION, _LATE)

    async def _whole(self, event: Message[Any]) -> Event | None:
        """Returns the message that a frame completes, if it does. Ends the connection if the
        message is too large, has too many frames, or finds no room."""
        text = isinstance(event, TextMessage)
        arriving = self._arriving
        arriving.parts.write(event.data.encode() if text else event.data)
        arriving.frames += event.frame_finished
        size = arriving.parts.tell()
        if size > self._limit or arriving.frames > _MOST_FRAMES + size // 1024:
            return CloseConnection(CloseReason.MESSAGE_TOO_BIG)
        try:
            await self._share.grow(self._kept + size)
        except Overloaded:
            return CloseConnection(CloseReason.TRY_AGAIN_LATER, _NO_ROOM)
        if not event.message_finished:
            now = asyncio.get_running_loop().time()
            begins = arriving.late_at or now + self._share.settings.max_body_s
            arriving.late_at = begins + len(event.data) / ARRIVAL_BYTES_S
            return None
        whole = arriving.parts.getvalue()
        self._arriving = _Arriving()
        return type(event)(data=whole.decode() if text else whole)

    async def send(self, event: Event) -> bool:
        """Whether the event was sent: not on a connection that is closing."""
        state = self._connection.state
        answers = state is ConnectionState.REMOTE_CLOSING and isinstance(event, CloseConnection)
        if state is not ConnectionState.OPEN and not answers:
            return False
        try:
            self._streams[1].write(self._connection.send(event))
            async with self._writing:
                await self._streams[1].drain()
        except (OSError, RuntimeError):  # the second is uvloop's of a closed transport
            return False
        return True

    async def end(self, closing: CloseConnection | None) -> None:
        """Close as the other side did: with its code, or with none."""
        if closing is None or not await self.send(closing):
            self.close()

    def close(self) -> None:
        """Close the connection below."""
        self._streams[1].close()
