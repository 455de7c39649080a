"""uvicorn's HTTP/1.1 protocol, adapted to the needs of a proxy."""

from __future__ import annotations

import sys
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from gateway.endpoints.body import Message, Receive, Scope, Send
from gateway.errors import BadRequest

_OFFER = (b"connection", b"upgrade", b"http2-settings")


class HttpProtocol(HttpToolsProtocol):
    """Handles three things that uvicorn's protocol does not.

    `Upgrade: h2c` is an offer that a server may ignore (RFC 9110 section 7.8); Java's HTTP client
    makes it with each first request. The parser takes the bytes after the head for another protocol
    and would lose the body, so it parses the request again without the offer.

    Trailers are not headers (RFC 9110 section 6.5.1) and are dropped. HTTP/1.0 clients get
    responses without chunked encoding.
    """

    _offered = False

    def data_received(self, data: bytes) -> None:
        """Feed the parser; after the head of a request with an offer, use a new parser."""
        self._unset_keepalive_if_required()
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as end:
            # The exception says how many bytes were parsed. A WebSocket upgrade is a request like
            # any other here: the application refuses it, and the bytes after it are not needed.
            if self._offered:
                self._without_offer(data[end.args[0] :])
        except httptools.HttpParserError:
            self.send_400_response("Invalid HTTP request received.")

    def on_headers_complete(self) -> None:
        """Start the request, unless it has to be parsed again."""
        self._offered = self.parser.should_upgrade() and self._get_upgrade() == b"h2c"
        if not self._offered:
            super().on_headers_complete()
            self.headers = []  # for trailers, which the parser appends; the request has its own

    def on_message_complete(self) -> None:
        """Ignore the end that the parser reports after the head of a request with an offer."""
        if not self._offered:
            super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """Answer bytes that are not HTTP with an error in OpenAI's shape, and close."""
        body = BadRequest(msg).body()
        head = b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\n"
        self.transport.write(
            b"%bcontent-length: %d\r\nconnection: close\r\n\r\n%b" % (head, len(body), body)
        )
        self.transport.close()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        if cycle.scope["http_version"] == "1.0":
            app = _Unframed(app, cycle)
        super()._start_asgi_task(cycle, app)

    def _without_offer(self, rest: bytes) -> None:
        method = self.parser.get_method()
        lines = [b"%b %b HTTP/1.1" % (method, self.url)]
        lines += [b"%b: %b" % (k, v) for k, v in self.headers if k not in _OFFER]
        self.parser = httptools.HttpRequestParser(self)
        self.data_received(b"\r\n".join([*lines, b"", b""]) + rest)


class _Unframed:
    """Ends an answer of unknown length by closing the connection: HTTP/1.0 has no chunks."""

    def __init__(self, app: Any, cycle: RequestResponseCycle) -> None:
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
