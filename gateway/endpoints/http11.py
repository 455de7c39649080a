"""The HTTP/1.1 side of uvicorn, without its traps for a proxy."""

from __future__ import annotations

import sys
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from gateway.endpoints.body import Message, Receive, Scope, Send
from gateway.errors import BadRequest

_OFFER = (b"connection", b"upgrade", b"http2-settings")


class HttpProtocol(HttpToolsProtocol):
    """HTTP/1.1 as it is, and as clients speak it.

    `Upgrade: h2c` is an offer that may be ignored (RFC 9110 section 7.8). Java's HTTP client makes
    it with every first request. The parser takes what follows the head for another protocol, and
    the body would be lost: so it gets the request again without the offer.

    Trailers are no headers (RFC 9110 section 6.5.1) and go no further. A client that speaks
    HTTP/1.0 gets no chunks.
    """

    _offered = False

    def data_received(self, data: bytes) -> None:
        """Feed the parser; go on with a fresh one behind the head of a request with an offer."""
        self._unset_keepalive_if_required()
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as end:
            # The parser tells how far it came. A WebSocket's request has been started: it is
            # refused, and needs nothing of what follows.
            if self._offered:
                self._without_offer(data[end.args[0] :])
        except httptools.HttpParserError:
            self.send_400_response("Invalid HTTP request received.")

    def on_headers_complete(self) -> None:
        """Start the request, unless it is to be read again."""
        self._offered = self.parser.should_upgrade() and self._get_upgrade() == b"h2c"
        if not self._offered:
            super().on_headers_complete()
            self.headers = []  # the request keeps its own; here the parser puts the trailers

    def on_message_complete(self) -> None:
        """The parser takes a request with an offer for complete: it has not begun yet."""
        if not self._offered:
            super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """Answer what is not HTTP, in OpenAI's error shape, and close."""
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
    """Ends an answer of unknown length by closing the connection, as HTTP/1.0 has no chunks."""

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
