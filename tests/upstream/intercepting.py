"""A proxy that ends TLS itself: what a gateway would have sent to each host of the world."""

from __future__ import annotations

import re
import socket
import ssl
import threading
from pathlib import Path
from typing import NamedTuple

from steering_gateway_testing import LoopbackServer
from steering_gateway_testing.loopback import an_answer, read_request
from steering_gateway_testing.tls import Authority

_CONNECT = re.compile(rb"CONNECT ([^: ]+):\d+ ")


def _refusal(status: int) -> bytes:
    error = b'{"error": {"message": "intercepted", "type": "x", "code": "x"}}'
    return an_answer(error, status=status, content_type="application/json")


class Sent(NamedTuple):
    """One request: the host it was meant for, and all its bytes."""

    host: str
    content: bytes


class InterceptingProxy(LoopbackServer):
    """An HTTP proxy on loopback; clients that trust `authority` speak TLS with it, not with the
    host that they asked for. Every request is answered with 401, at the hosts in `dry` with 429."""

    def __init__(self, folder: Path, dry: frozenset[str] = frozenset()) -> None:
        self.authority = Authority(folder, "everyone")
        self.sent: list[Sent] = []
        self._dry = dry
        self._contexts: dict[str, ssl.SSLContext] = {}
        self._lock = threading.Lock()
        super().__init__()

    @property
    def env(self) -> dict[str, str]:
        """Variables of a gateway that steers and reaches every host through here."""
        return {
            "HTTPS_PROXY": self.url,
            "HTTP_PROXY": self.url,
            "SSL_CERT_FILE": str(self.authority.file),
            "GATEWAY_STEERING__MODE": "on",
        }

    def serve(self, connection: socket.socket) -> None:
        """Note one request and refuse it."""
        head, body = read_request(connection)
        asked = _CONNECT.match(head)
        if asked is None:  # plain HTTP, to a host on the network
            host = re.search(rb"\r\nhost: *([^:\r]+)", head, re.IGNORECASE)
            self.sent.append(Sent(host[1].decode() if host else "", head + body))
            connection.sendall(_refusal(401))
            return
        connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        name = asked[1].decode()
        with self._context(name).wrap_socket(connection, server_side=True) as secure:
            self.sent.append(Sent(name, b"".join(read_request(secure))))
            secure.sendall(self.answer(name, self.sent[-1].content))

    def answer(self, host: str, request: bytes) -> bytes:
        """What a host answers over TLS."""
        return _refusal(429 if host in self._dry else 401)

    def _context(self, name: str) -> ssl.SSLContext:
        with self._lock:
            if name not in self._contexts:
                self._contexts[name] = self.authority.server(name)
            return self._contexts[name]
