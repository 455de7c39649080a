"""A WebSocket to an upstream: the handshake as HTTP, then the bytes as they are."""

from __future__ import annotations

import asyncio
import ssl
from dataclasses import dataclass, field

import httptools
from yarl import URL

from gateway.config import TimeoutSettings
from gateway.errors import UpstreamMalformed, UpstreamTimeout, UpstreamUnreachable
from gateway.upstream.base import RawHeaders

BUFFER_BYTES = 2**16
"""What one direction holds before its sender has to wait, and the longest head of an answer."""
_MAX_REFUSAL_BYTES = 2**20
"""Of an answer that refuses the WebSocket, so much is relayed; it is an error message."""


@dataclass(slots=True)
class Handshake:
    """The upstream's answer to a request for a WebSocket.

    `status` 101: the WebSocket is open; `reader` and `writer` carry its frames, after `early`. Any
    other: the upstream refused, `body` says why, and the connection is closed.
    """

    status: int = 0
    reason: bytes = b""
    headers: RawHeaders = field(default_factory=list)
    body: bytes = b""
    early: bytes = b""
    reader: asyncio.StreamReader | None = None
    writer: asyncio.StreamWriter | None = None

    def head(self, more: RawHeaders) -> bytes:
        """The status line and the headers as they came, and `more` of our own."""
        lines = [b"HTTP/1.1 %d %b" % (self.status, self.reason)]
        lines += [b"%b: %b" % header for header in [*self.headers, *more]]
        return b"\r\n".join([*lines, b"", b""])


async def open_websocket(url: URL, headers: RawHeaders, timeouts: TimeoutSettings) -> Handshake:
    """Ask `url` for a WebSocket. `headers`: all of the client's that the upstream may see.

    Raises:
        UpstreamFailure: no connection, no answer in time, or an answer that is not HTTP.
    """
    reader, writer = await _connect(url, timeouts)
    answer = Handshake()
    try:
        writer.write(_request(url, headers))
        async with asyncio.timeout(timeouts.first_byte_s or None):
            await _read_answer(reader, answer)
    except TimeoutError as exc:
        limit = f"{timeouts.first_byte_s:g} s (timeouts.first_byte_s)"
        raise UpstreamTimeout(f"no answer to the WebSocket request within {limit}") from exc
    except OSError as exc:
        raise UpstreamUnreachable("the upstream closed the connection before an answer") from exc
    except httptools.HttpParserError as exc:
        raise UpstreamMalformed("the upstream did not answer in HTTP") from exc
    finally:
        if answer.status != 101:
            writer.close()
    answer.reader, answer.writer = reader, writer
    return answer


async def _connect(
    url: URL, timeouts: TimeoutSettings
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    secure = url.scheme in ("https", "wss")
    context = ssl.create_default_context() if secure else None
    where = f"{url.scheme}://{url.host_port_subcomponent}"
    try:
        async with asyncio.timeout(timeouts.connect_s or None):
            return await asyncio.open_connection(
                url.host, url.port, ssl=context, limit=BUFFER_BYTES
            )
    except TimeoutError as exc:
        limit = f"{timeouts.connect_s:g} s (timeouts.connect_s)"
        raise UpstreamTimeout(f"no connection to {where} within {limit}") from exc
    except OSError as exc:
        reason = exc.strerror or type(exc).__name__
        raise UpstreamUnreachable(f"{where} cannot be reached: {reason}") from exc


def _request(url: URL, headers: RawHeaders) -> bytes:
    lines = [
        b"GET %b HTTP/1.1" % url.raw_path_qs.encode(),
        b"host: %b" % (url.host_port_subcomponent or "").encode(),
        b"connection: Upgrade",
        b"upgrade: websocket",
    ]
    lines += [b"%b: %b" % header for header in headers]
    return b"\r\n".join([*lines, b"", b""])


async def _read_answer(reader: asyncio.StreamReader, answer: Handshake) -> None:
    parser = _AnswerParser(answer)
    while not parser.whole:
        data = await reader.read(BUFFER_BYTES)
        if not data:
            if parser.head_read:
                return  # the end of a body without a length
            raise ConnectionResetError
        try:
            parser.feed(data)
        except httptools.HttpParserUpgrade as end:
            answer.early = data[end.args[0] :]
            return


class _AnswerParser:
    """Fills in a Handshake from the bytes of an HTTP answer."""

    def __init__(self, answer: Handshake) -> None:
        self._answer = answer
        self._parser = httptools.HttpResponseParser(self)
        self._head_bytes = 0
        self.head_read = False
        self.whole = False

    def feed(self, data: bytes) -> None:
        """Parse what arrived. Raises: HttpParserUpgrade after the head of an open WebSocket."""
        self._head_bytes += 0 if self.head_read else len(data)
        self._parser.feed_data(data)
        if not self.head_read and self._head_bytes > BUFFER_BYTES:
            raise UpstreamMalformed("the upstream's answer has a head without an end")

    def on_status(self, reason: bytes) -> None:
        """Take a part of the reason."""
        self._answer.reason += reason

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header of the answer."""
        if not self.head_read:
            self._answer.headers.append((name, value))

    def on_headers_complete(self) -> None:
        """Note the status."""
        self._answer.status = self._parser.get_status_code()
        self.head_read = True

    def on_body(self, body: bytes) -> None:
        """Take a piece of an error message."""
        room = _MAX_REFUSAL_BYTES - len(self._answer.body)
        self._answer.body += body[: max(room, 0)]
        self.whole = self.whole or len(body) > room

    def on_message_complete(self) -> None:
        """Note the end."""
        self.whole = True
