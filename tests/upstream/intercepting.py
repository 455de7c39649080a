"""A proxy that ends TLS itself: what a gateway would have sent to each host of the world."""

from __future__ import annotations

import contextlib
import re
import socket
import ssl
import threading
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

from tests.relay.tls import Authority

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_CONNECT = re.compile(rb"CONNECT ([^: ]+):\d+ ")
_BODY = b'{"error": {"message": "intercepted", "type": "x", "code": "x"}}'
_REFUSED = (
    b"HTTP/1.1 401 Unauthorized\r\ncontent-type: application/json\r\nconnection: close\r\n"
    b"content-length: %d\r\n\r\n%b" % (len(_BODY), _BODY)
)


class Sent(NamedTuple):
    """One request: the host it was meant for, and all its bytes."""

    host: str
    content: bytes


class InterceptingProxy:
    """An HTTP proxy on loopback; clients that trust `authority` speak TLS with it, not with the
    host that they asked for. Every request is answered with 401."""

    def __init__(self, folder: Path) -> None:
        self.authority = Authority(folder, "everyone")
        self.sent: list[Sent] = []
        self._contexts: dict[str, ssl.SSLContext] = {}
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def __enter__(self) -> InterceptingProxy:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                plain, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(plain,), daemon=True).start()

    def _serve(self, plain: socket.socket) -> None:
        with contextlib.suppress(OSError, ValueError), plain:
            head = _read(plain, b"")
            asked = _CONNECT.match(head)
            if asked is None:  # plain HTTP, to a host on the network
                host = re.search(rb"\r\nhost: *([^:\r]+)", head, re.IGNORECASE)
                self.sent.append(Sent(host[1].decode() if host else "", head))
                plain.sendall(_REFUSED)
                return
            plain.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
            name = asked[1].decode()
            with self._context(name).wrap_socket(plain, server_side=True) as secure:
                self.sent.append(Sent(name, _read(secure, b"")))
                secure.sendall(_REFUSED)

    def _context(self, name: str) -> ssl.SSLContext:
        with self._lock:
            if name not in self._contexts:
                self._contexts[name] = self.authority.server(name)
            return self._contexts[name]


def _read(connection: socket.socket, received: bytes) -> bytes:
    while b"\r\n\r\n" not in received:
        received += _some(connection)
    head, _, body = received.partition(b"\r\n\r\n")
    length = _LENGTH.search(head)
    while length is not None and len(body) < int(length[1]):
        body += _some(connection)
    return head + b"\r\n\r\n" + body


def _some(connection: socket.socket) -> bytes:
    piece = connection.recv(2**16)
    if not piece:
        raise ValueError("closed")
    return piece
