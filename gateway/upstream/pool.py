"""The connections of the native lane, and what is the same for all requests to one URL."""

from __future__ import annotations

import asyncio
import functools
import select
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import aiohttp
from aiohttp.client_proto import ResponseHandler
from aiohttp.client_reqrep import ConnectionKey
from aiohttp.connector import Connection
from aiohttp.helpers import get_env_proxy_for_url
from yarl import URL

from gateway.upstream.base import RawHeaders
from gateway.upstream.http1 import PooledConnection

CONNECTED: ContextVar[bool] = ContextVar("connected")
"""Whether the request being sent opened a connection instead of using an idle one."""


_BODILESS = frozenset({"GET", "HEAD", "DELETE", "OPTIONS"})
"""Methods whose requests mostly have no body, and then no length either (RFC 9110, 8.6)."""


class Route:
    """What is the same for all requests to one URL."""

    def __init__(
        self, method: str, url: URL, session: aiohttp.ClientSession, *, proxied: bool = False
    ) -> None:
        loop = asyncio.get_running_loop()
        proxy, login = _proxy_for(url) if proxied else (None, None)
        self._request = _Keyed(
            method, url, session=session, loop=loop, proxy=proxy, proxy_auth=login
        )
        self._pool = session.connector
        self._says_length = method not in _BODILESS
        given = self._request.headers  # `Host`, and the login that the URL names
        self._login = given.get("Authorization", "").encode()
        plain = self._request.url
        absolute = proxy is not None and plain.scheme == "http"
        target = str(plain) if absolute else plain.raw_path_qs
        start = f"{method} {target} HTTP/1.1\r\nHost: {given['Host']}\r\n"
        if absolute and login is not None:
            start += f"Proxy-Authorization: {login.encode()}\r\n"
        self._start = start.encode()

    async def connect(self, limits: aiohttp.ClientTimeout) -> Connection:
        """A connection on which nothing is waiting to be read. Raises: aiohttp.ClientError."""
        assert self._pool is not None
        while True:
            try:
                connection = await self._pool.connect(self._request, [], limits)
            except TimeoutError as exc:
                raise aiohttp.ConnectionTimeoutError from exc
            protocol = connection.protocol
            assert isinstance(protocol, PooledConnection)
            if not protocol.is_used and protocol.should_close:
                spoke = protocol.is_connected()
                connection.close()
                if spoke:
                    raise ValueError("the upstream spoke before it was asked")
                raise aiohttp.ServerDisconnectedError
            if not (protocol.should_close or (protocol.is_used and _is_readable(protocol))):
                protocol.is_used = True
                return connection
            connection.close()

    def head(self, headers: RawHeaders, length: int | None) -> bytes:
        """The head of a request; `length` None: of a body in chunks.

        Raises:
            ValueError: a header would end its line, or a login is beside that of the URL.
        """
        lines = [b"%b: %b" % (name, _utf8(value)) for name, value in headers]
        if length is None:
            lines.append(b"Transfer-Encoding: chunked")
        elif length or self._says_length:
            lines.append(b"Content-Length: %d" % length)
        if self._login:
            if any(name.lower() == b"authorization" for name, _ in headers):
                raise ValueError("the request has a login beside that of the URL")
            lines.append(b"Authorization: " + self._login)
        fields = b"\r\n".join(lines) + b"\r\n\r\n" if lines else b"\r\n"
        ends = len(lines) + 1
        if fields.count(b"\n") != ends or fields.count(b"\r") != ends or fields.count(b"\0"):
            raise ValueError("a header of the request contains a line break or a NUL")
        return self._start + fields


class _Keyed(aiohttp.ClientRequest):
    """What the pool needs to know of a request, worked out once."""

    @functools.cached_property
    def connection_key(self) -> ConnectionKey:
        return super().connection_key


class Connector(aiohttp.TCPConnector):
    """Records that it opened a connection."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        make: Callable[..., ResponseHandler] = PooledConnection
        self._factory = functools.partial(make, loop=self._loop)

    async def _create_connection(self, *args: Any, **kwargs: Any) -> ResponseHandler:
        CONNECTED.set(True)
        return await super()._create_connection(*args, **kwargs)

    def _release(
        self, key: ConnectionKey, protocol: ResponseHandler, *, should_close: bool = False
    ) -> None:
        if isinstance(protocol, PooledConnection):
            protocol.is_idle = True
        super()._release(key, protocol, should_close=should_close)


class UploadConnector(Connector):
    """Opens a connection for each request, and closes it within a millisecond of its end.

    aiohttp's way to keep none adds a Connection header. With a short limit alone the next request
    used the connection again if it came within the limit.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(keepalive_timeout=0.001, **options)

    async def _get(self, *_args: Any) -> None:
        """No idle connection."""


def _proxy_for(url: URL) -> tuple[URL | None, aiohttp.BasicAuth | None]:
    """The proxy that the environment names for a URL, and the login there."""
    try:
        return get_env_proxy_for_url(url)
    except LookupError:
        return None, None


def _is_readable(protocol: ResponseHandler) -> bool:
    """Whether bytes, or the end, have come on an idle connection and are not read yet: they would
    be taken for the answer to the next request."""
    transport = protocol.transport
    if transport is None or transport.is_closing():
        return True
    poll = select.poll()
    poll.register(transport.get_extra_info("socket").fileno(), select.POLLIN)
    return bool(poll.poll(0))


def _utf8(value: bytes) -> bytes:
    """A header value as UTF-8; what is none is taken for Latin-1."""
    try:
        value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1").encode()
    return value
