"""The sockets that the gateway listens on."""

from __future__ import annotations

import socket
import sys

from gateway.errors import ConfigError


def bind(host: str, port: int) -> socket.socket:
    """A socket on the address, which no other program has. Raises: ConfigError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((host, port))
    except OSError as exc:
        sock.close()
        raise ConfigError(f"server: cannot listen on {host}:{port}: {exc.strerror}") from exc
    return sock


def shared_sockets(first: socket.socket, count: int) -> list[socket.socket]:
    """A socket for each of `count` workers on the address of `first`, which is bound and unused.

    On Linux the kernel spreads connections evenly over sockets of their own; on one socket a worker
    that is awake takes nearly all of a burst. Raises: OSError.
    """
    if sys.platform != "linux":
        return [first] * count
    address = first.getsockname()
    family = first.family
    first.close()  # it was bound without sharing, to notice another program on the address
    sockets = []
    for _ in range(count):
        sock = socket.socket(family)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sock.bind(address)
        sockets.append(sock)
    return sockets
