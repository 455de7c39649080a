"""The connections of the native lane, and the parts that all requests to one URL share."""

import asyncio
import ipaddress
import netrc
import os
import socket
import ssl
import sys
import urllib.request
from base64 import b64encode
from contextlib import suppress
from typing import Any, NamedTuple

import aiohappyeyeballs
from cachetools import TTLCache
from yarl import URL

from gateway.errors import UpstreamMalformed, UpstreamTimeout, UpstreamUnreachable
from gateway.observability.logging import get_logger
from gateway.tasks import Threads, loading
from gateway.upstream.http1 import Handover, IdleGuard, PooledConnection
from gateway.wire.headers import RawHeaders

# Methods whose requests mostly have no body, and then no length either (RFC 9110, 8.6).
_BODILESS = frozenset({"GET", "HEAD", "DELETE", "OPTIONS"})
_NEXT_ADDRESS_S = 0.25  # RFC 8305 section 8: after this the next address is tried, too
_NAMES_S = 60.0  # as long are the addresses of a name kept
_MOST_NAMES = 1000
_looking_up = Threads("looking up names", 8).run


class Origin(NamedTuple):
    """The place that connections lead to."""

    url: URL  # scheme, host and port
    proxy: URL | None = None  # on the way; None for none
    login: bytes = b""  # the value of `Proxy-Authorization`; empty for none


def where(url: URL) -> str:
    """The origin of a URL, for messages."""
    return f"{url.scheme}://{url.host_port_subcomponent}"


def closed_early(place: str) -> UpstreamUnreachable:
    """The error of a connection that was closed before the head of an answer."""
    return UpstreamUnreachable(f"{place} closed the connection before an answer", retryable=True)


def origin_of(url: URL, *, proxied: bool) -> Origin:
    """The origin of a URL; `proxied`: with the proxy that the environment names for it. Raises:
    ValueError: the URL has no host, or its proxy is not one for HTTP."""
    if not proxied:
        return Origin(url.origin(), None, b"")
    proxy, login = _proxy_for(url)
    return Origin(url.origin(), proxy, login)


class Pool:
    """Connections to upstreams: at most `limit` in use, and idle ones for `keepalive_s`. With
    `keepalive_s` 0 every request has a connection opened for it."""

    def __init__(self, *, limit: int, connect_s: float, keepalive_s: float):
        self.in_use: dict[PooledConnection, Origin] = {}
        self._connect_s = connect_s
        self._keepalive_s = keepalive_s
        self._room = asyncio.Semaphore(limit or sys.maxsize)
        self._idle: dict[Origin, list[PooledConnection]] = {}
        self._addresses: TTLCache[tuple[str, int], list[Any]] = TTLCache(_MOST_NAMES, _NAMES_S)
        self._tls: ssl.SSLContext | None = None
        self._sweep: asyncio.TimerHandle | None = None

    async def connect(self, origin: Origin) -> PooledConnection:
        """A connection on which nothing is waiting to be read. Raises: UpstreamFailure."""
        await self._room.acquire()
        try:
            connection = self._idle_one(origin) or await self._opened(origin)
        except BaseException:
            self._room.release()
            raise
        self.in_use[connection] = origin
        return connection

    def _take_back(self, connection: PooledConnection, reusable: bool) -> None:
        """Take a connection out of use; one that cannot be used again is closed."""
        origin = self.in_use.pop(connection, None)
        if origin is not None:
            self._room.release()
        if origin is None or not (reusable and self._keepalive_s):
            connection.close()
            return
        loop = asyncio.get_running_loop()
        connection.idle_until = loop.time() + self._keepalive_s
        self._idle.setdefault(origin, []).append(connection)
        if self._sweep is None:
            self._sweep = loop.call_at(connection.idle_until, self._close_expired)

    def close(self) -> None:
        """Close all connections."""
        if self._sweep is not None:
            self._sweep.cancel()
            self._sweep = None
        idle = [connection for each in self._idle.values() for connection in each]
        self._idle.clear()
        for connection in [*idle, *self.in_use]:
            connection.close()

    def _idle_one(self, origin: Origin) -> PooledConnection | None:
        """The connection that was used last, if it is still open and nothing came unasked."""
        idle = self._idle.get(origin)
        while idle:
            connection = idle.pop()
            if connection.is_quiet():
                return connection
            connection.close()
        return None

    def _close_expired(self) -> None:
        """Close connections that were idle for too long, and drop those that have closed."""
        loop = asyncio.get_running_loop()
        kept = dict[Origin, list[PooledConnection]]()
        for origin, connections in self._idle.items():
            for connection in connections:
                if connection.is_open and connection.idle_until > loop.time():
                    kept.setdefault(origin, []).append(connection)
                else:
                    connection.close()
        self._idle = kept
        times = [each[0].idle_until for each in kept.values()]
        if times:
            self._sweep = loop.call_at(min(times), self._close_expired)
        else:
            self._sweep = None

    async def _opened(self, origin: Origin) -> PooledConnection:
        """A new connection. Raises: UpstreamFailure."""
        connection = PooledConnection(self._take_back)
        try:
            async with asyncio.timeout(self._connect_s or None) as limit:
                await self._open(connection, origin)
        except BaseException as exc:
            connection.close()
            if isinstance(exc, TimeoutError) and limit.expired():
                raise UpstreamTimeout(
                    f"no connection to {where(origin.url)} within {self._connect_s:g} s "
                    "(timeouts.connect_s)",
                    retryable=True,
                ) from exc
            if isinstance(exc, (OSError, ValueError)):
                raise _unreachable(exc, origin) from exc
            raise
        if connection.has_spoken:  # before it was asked
            raise UpstreamMalformed(f"{where(origin.url)} did not answer in HTTP")
        if not connection.is_open:
            raise closed_early(where(origin.url))
        return connection

    async def _open(self, connection: PooledConnection, origin: Origin) -> None:
        url, proxy, _ = origin
        loop = asyncio.get_running_loop()
        first = proxy or url
        secure = None
        if url.scheme in ("https", "wss"):
            if self._tls is None:  # made in a thread: it reads the files of the authorities
                self._tls = await loading(ssl.create_default_context)
                self._tls.set_alpn_protocols(["http/1.1"])
            secure = self._tls
        addresses = await self._look_up(first.raw_host or "", first.port or 80)
        found = await aiohappyeyeballs.start_connection(
            addresses, happy_eyeballs_delay=_NEXT_ADDRESS_S, interleave=1
        )
        host = (url.raw_host or "").rstrip(".")
        if proxy is None or secure is None:
            name = host if secure else None
            await loop.create_connection(
                lambda: connection, sock=found, ssl=secure, server_hostname=name
            )
            return
        await loop.create_connection(lambda: connection, sock=found)
        plain = await _tunnel(connection, origin)
        connection.transport = await loop.start_tls(plain, connection, secure, server_hostname=host)

    async def _look_up(self, host: str, port: int) -> list[Any]:
        """The addresses of a host, each time from another one on. Raises: socket.gaierror."""
        addresses = self._addresses.get((host, port))
        if addresses is None:
            flags = socket.AI_ADDRCONFIG
            with suppress(ValueError):  # a name
                ipaddress.ip_address(host)
                flags = socket.AI_NUMERICHOST
            # uvloop's own look-up holds the end of the loop until a name server has answered.
            addresses = list(
                await _looking_up(
                    socket.getaddrinfo, host, port, type=socket.SOCK_STREAM, flags=flags
                )
            )
            self._addresses[host, port] = addresses
        addresses.append(addresses.pop(0))
        return list(addresses)


class Route:
    """Parts that are the same for all requests to one URL."""

    def __init__(self, method: str, url: URL, pool: Pool, *, proxied: bool = False):
        self.origin = origin = origin_of(url, proxied=proxied)
        self.pool = pool
        self._says_length = method not in _BODILESS
        self._login = _login(url)
        absolute = origin.proxy is not None and url.scheme == "http"
        if absolute:
            target = str(url.with_user(None).with_fragment(None))
        else:
            target = url.raw_path_qs
        start = f"{method} {target} HTTP/1.1\r\nHost: {url.host_port_subcomponent}\r\n".encode()
        if absolute and origin.login:
            start += b"Proxy-Authorization: %b\r\n" % origin.login
        self._start = start

    def head(self, headers: RawHeaders, length: int | None) -> bytes:
        """The head of a request; `length` None: of a body in chunks. Raises: ValueError: a header
        would end its line, or a login is beside that of the URL."""
        lines = [b"%b: %b" % (name, _utf8(value)) for name, value in headers]
        if length is None:
            lines.append(b"Transfer-Encoding: chunked")
        elif length or self._says_length:
            lines.append(b"Content-Length: %d" % length)
        if self._login:
            if any(name.lower() == b"authorization" for name, _ in headers):
                raise ValueError("the request has a login beside that of the URL")
            lines.append(b"Authorization: " + self._login)
        fields = b"".join([line + b"\r\n" for line in [*lines, b""]])
        ends = len(lines) + 1
        if fields.count(b"\n") != ends or fields.count(b"\r") != ends or fields.count(b"\0"):
            raise ValueError("a header of the request contains a line break or a NUL")
        return self._start + fields


def _proxy_for(url: URL) -> tuple[URL | None, bytes]:
    """The proxy that the environment names for a URL, and the login there."""
    named = urllib.request.getproxies().get(url.scheme)
    if not named or urllib.request.proxy_bypass(url.host or ""):
        return None, b""
    proxy = URL(named)
    if proxy.scheme in ("https", "wss"):
        get_logger("gateway.native").warning("a proxy that is reached over TLS is not used")
        return None, b""
    if proxy.scheme != "http":
        raise ValueError("only HTTP proxies are supported")
    login = _login(proxy)
    if not login:  # the file that other programs read, too
        file = os.environ.get("NETRC") or os.path.expanduser("~/.netrc")
        with suppress(OSError, netrc.NetrcParseError):
            known = netrc.netrc(file).authenticators(proxy.host or "")
            login = b""
            if known:
                login = _basic(known[0] or known[1] or "", known[2] or "")
    return proxy.with_user(None), login


def _login(url: URL) -> bytes:
    """The login that a URL names, as the value of a header; empty for none."""
    if url.raw_user is None and url.raw_password is None:
        return b""
    return _basic(url.user or "", url.password or "")


def _basic(user: str, password: str) -> bytes:
    return b"Basic " + b64encode(f"{user}:{password}".encode("latin-1"))


# OpenSSL's errors of certificates that break RFC 5280 (x509_vfy.h, PATHLEN_INVALID_FOR_NON_CA to
# EC_KEY_EXPLICIT_PARAMS). Python 3.13 and later check them by default (VERIFY_X509_STRICT).
_STRICT_CODES = range(80, 95)


async def _tunnel(connection: PooledConnection, origin: Origin) -> asyncio.Transport:
    """Have the proxy connect to the origin. Raises: OSError, ValueError: it does not."""
    url, _, login = origin
    target = f"{url.host_subcomponent}:{url.port}".encode()
    head = b"CONNECT %b HTTP/1.1\r\nHost: %b\r\n" % (target, target)
    if login:
        head += b"Proxy-Authorization: %b\r\n" % login
    answer = Handover(connection, IdleGuard(0), range(200, 300))
    await answer.ask(head + b"\r\n", b"", chunked=False)
    if not 200 <= answer.status < 300 or answer.early:
        raise ValueError("the proxy refused, or spoke before it was asked")
    return answer.taken_over()


def _unreachable(exc: Exception, origin: Origin) -> UpstreamUnreachable | UpstreamMalformed:
    """The error of a connection that could not be opened."""
    place = where(origin.url)
    match exc:
        case ssl.SSLError():
            reason = getattr(exc, "verify_message", "") or exc.reason or "no handshake"
            hint = "SSL_CERT_FILE may name authorities"
            if getattr(exc, "verify_code", 0) in _STRICT_CODES:
                hint = "Python 3.13 and later ask for it: have the certificate issued again with it"
            return UpstreamUnreachable(f"{place} cannot be reached over TLS: {reason} ({hint})")
        case socket.gaierror():
            reason = f"{place}: the host name cannot be resolved"
        case ConnectionError() if not exc.errno:
            return closed_early(place)
        case OSError():
            if exc.errno:
                named = os.strerror(exc.errno)
            else:
                named = exc.strerror or "refused"
            reason = f"{place} cannot be reached: {named}"
        case _:
            return UpstreamMalformed(f"{place} did not answer in HTTP")
    return UpstreamUnreachable(reason, retryable=True)


def _utf8(value: bytes) -> bytes:
    """A header value as UTF-8; what is none is taken for Latin-1."""
    try:
        value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1").encode()
    return value
