"""The HTTP/1.1 side of uvicorn, without its one trap for clients that offer HTTP/2."""

from __future__ import annotations

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

_OFFER = (b"connection", b"upgrade", b"http2-settings")


class HttpProtocol(HttpToolsProtocol):
    """Takes `Upgrade: h2c` for what it is, an offer that may be ignored (RFC 9110 section 7.8).

    Java's HTTP client makes it with every first request. The parser takes what follows the head for
    another protocol, and the body would be lost: so it gets the request again without the offer.
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

    def on_message_complete(self) -> None:
        """The parser takes a request with an offer for complete: it has not begun yet."""
        if not self._offered:
            super().on_message_complete()

    def _without_offer(self, rest: bytes) -> None:
        method = self.parser.get_method()
        lines = [b"%b %b HTTP/1.1" % (method, self.url)]
        lines += [b"%b: %b" % (k, v) for k, v in self.headers if k not in _OFFER]
        self.parser = httptools.HttpRequestParser(self)
        self.data_received(b"\r\n".join([*lines, b"", b""]) + rest)
