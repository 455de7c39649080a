"""A WebSocket to an upstream: the handshake as HTTP, then the bytes as they are, or as messages."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from io import BytesIO, StringIO

from wsproto.connection import Connection, ConnectionState, ConnectionType
from wsproto.events import CloseConnection, Event, Message
from wsproto.frame_protocol import CloseReason
from yarl import URL

from gateway.config import TimeoutSettings
from gateway.errors import UpstreamMalformed, UpstreamTimeout, UpstreamUnreachable
from gateway.upstream.base import IdleGuard, RawHeaders
from gateway.upstream.http1 import Handover
from gateway.upstream.pool import Origin, Pool

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]

BUFFER_BYTES = 2**16  # what one direction holds before its sender has to wait
_PIECE_BYTES = 2**13
_MAX_REFUSAL_BYTES = 2**20
"""Of an answer that refuses the WebSocket, so much is relayed; it is an error message."""


@dataclass(slots=True)
class Handshake:
    """The upstream's answer to a request for a WebSocket. `status` 101: `streams` carry its frames.
    Any other: it refused, `body` says why, and the connection is closed."""

    status: int = 0
    reason: bytes = b""
    headers: RawHeaders = field(default_factory=list)
    body: bytes = b""
    streams: Streams | None = None

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
    transport, loop = answer.taken_over(), asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=BUFFER_BYTES, loop=loop)
    protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
    transport.set_protocol(protocol)
    protocol.connection_made(transport)
    reader.feed_data(answer.early)
    return reader, asyncio.StreamWriter(transport, protocol, reader, loop)


class MessageSide:
    """One side of a WebSocket past its handshake, as whole messages and control frames. `limit_mb`:
    size of the largest message; a larger one, or a broken frame, ends the connection. `asks`: it is
    the upstream, whose client this is."""

    def __init__(self, streams: Streams, limit_mb: float, *, asks: bool = False) -> None:
        self._reader, self._writer = streams
        kind = ConnectionType.CLIENT if asks else ConnectionType.SERVER
        self._connection, self._limit = Connection(kind), int(limit_mb * 2**20)
        self._writing = asyncio.Lock()

    async def events(self) -> AsyncIterator[Event]:
        """Its messages, until it has closed, which is answered here, or is gone."""
        held, size = None, 0  # not as a list: a frame may have one byte, or none
        with contextlib.suppress(OSError):
            while data := await self._reader.read(_PIECE_BYTES):
                if len(data) == _PIECE_BYTES:
                    await asyncio.sleep(0)  # it may be a thousand frames, and more
                self._connection.receive_data(data)
                for event in self._connection.events():
                    given: Event = event
                    if isinstance(event, Message):
                        held = held or (StringIO if isinstance(event.data, str) else BytesIO)()
                        size += held.write(event.data)
                        if size > self._limit:
                            given = CloseConnection(CloseReason.MESSAGE_TOO_BIG)
                        elif not event.message_finished:
                            continue
                        else:
                            given = type(event)(data=held.getvalue())
                            held, size = None, 0
                    if isinstance(given, CloseConnection):
                        await self.send(given)
                    yield given
                    if isinstance(given, CloseConnection):
                        return

    async def send(self, event: Event) -> bool:
        """Whether the event was sent: not on a connection that is closing."""
        state = self._connection.state
        answers = state is ConnectionState.REMOTE_CLOSING and isinstance(event, CloseConnection)
        if state is not ConnectionState.OPEN and not answers:
            return False
        self._writer.write(self._connection.send(event))
        try:
            async with self._writing:
                await self._writer.drain()
        except OSError:
            return False
        return True

    async def end(self, closing: CloseConnection | None) -> None:
        """Close as the other side did: with its code, or with none."""
        if closing is None or not await self.send(closing):
            self.close()

    def close(self) -> None:
        """Close the connection below."""
        self._writer.close()
