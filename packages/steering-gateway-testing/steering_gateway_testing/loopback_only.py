"""Keeps a process from all hosts but its own: none beyond loopback is connected to or looked up."""

from __future__ import annotations

import ipaddress
import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

OUTSIDE: list[str] = []
"""Hosts beyond loopback that were tried. So code that copes with the refusal is found out too."""


class OutsideNetworkError(OSError):
    """A test reached for something beyond the loopback interface."""


@contextmanager
def loopback_only() -> Iterator[None]:
    """Refuse every connection and every name beyond loopback while the block runs."""
    with ExitStack() as guards:
        _guard_sockets(guards)
        if sys.platform != "win32":
            _guard_uvloop(guards)
        yield


def _refuse(host: object) -> None:
    if not _is_loopback(host):
        OUTSIDE.append(str(host))
        raise OutsideNetworkError(f"no network beyond loopback in tests: {host!r}")


def _is_loopback(host: object) -> bool:
    if isinstance(host, bytes):
        host = host.decode("ascii", "replace")
    if host in (None, "", "localhost"):
        return True
    try:
        address = ipaddress.ip_address(str(host).partition("%")[0])
    except ValueError:
        return False
    return address.is_loopback or address.is_unspecified


def _guard_sockets(guards: ExitStack) -> None:
    connect = socket.socket.connect
    connect_ex = socket.socket.connect_ex
    look_up = socket.getaddrinfo

    def guarded_connect(self: socket.socket, address: Any) -> None:
        if self.family != socket.AF_UNIX:
            _refuse(address[0])
        connect(self, address)

    def guarded_connect_ex(self: socket.socket, address: Any) -> int:
        if self.family != socket.AF_UNIX:
            _refuse(address[0])
        return connect_ex(self, address)

    def guarded_look_up(host: Any, *args: Any, **kwargs: Any) -> Any:
        _refuse(host)
        return look_up(host, *args, **kwargs)

    guards.enter_context(mock.patch.object(socket.socket, "connect", guarded_connect))
    guards.enter_context(mock.patch.object(socket.socket, "connect_ex", guarded_connect_ex))
    guards.enter_context(mock.patch.object(socket, "getaddrinfo", guarded_look_up))


def _guard_uvloop(guards: ExitStack) -> None:
    """Guard uvloop, which connects and resolves in C, past the socket module."""
    import uvloop

    create = uvloop.Loop.create_connection
    look_up = uvloop.Loop.getaddrinfo

    async def guarded_create(self: Any, factory: Any, host: Any = None, *a: Any, **k: Any) -> Any:
        _refuse(host)
        return await create(self, factory, host, *a, **k)

    async def guarded_look_up(self: Any, host: Any, *args: Any, **kwargs: Any) -> Any:
        _refuse(host)
        return await look_up(self, host, *args, **kwargs)

    guards.enter_context(mock.patch.object(uvloop.Loop, "create_connection", guarded_create))
    guards.enter_context(mock.patch.object(uvloop.Loop, "getaddrinfo", guarded_look_up))
