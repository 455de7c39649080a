"""The native lane: the client's bytes to an upstream that speaks the client's dialect, and back.

Straight on aiohttp's connections: an HTTP client's own redirects, cookies, URL normalisation,
joining of repeated headers and decoding are all things a proxy must not do. Answers are read by
`gateway/upstream/http1.py`, those of LiteLLM's calls too; aiohttp itself sends uploads of unknown
content, `HEAD`, and what goes through a proxy.
"""

from __future__ import annotations

import asyncio
import io
import math
import os
import re
import time
import urllib.request
from collections.abc import AsyncIterator, Iterable
from typing import Any

import aiohttp
import httpx
from multidict import CIMultiDict
from yarl import URL

from gateway.config import TimeoutSettings
from gateway.errors import UpstreamFailure, UpstreamMalformed, UpstreamTimeout, UpstreamUnreachable
from gateway.upstream.base import LaneResponse, RawHeaders, end_to_end
from gateway.upstream.http1 import Http1Answer
from gateway.upstream.idle import IdleGuard
from gateway.upstream.pool import CONNECTED, Connector, Route, UploadConnector, header_text

# aiohttp would add these to a request without them; a proxy adds nothing.
_NEVER_ADD = frozenset({"Accept", "Accept-Encoding", "User-Agent", "Content-Type"})
_KEEPALIVE_S = 30.0  # below the idle limits of common load balancers (60 s and above)
_CONTROL = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")  # RFC 9110 section 5.5: may become spaces
_BIG_BODY = 2**20  # from here on aiohttp wants a file, which it writes piece by piece
_STALE_S = 1.0  # a connection that was closed while idle fails within this time
_MOST_ROUTES = 512  # as many URLs are kept prepared
_BODILESS = (
    204,
    304,
)  # RFC 9110, 15.3.5 and 15.4.5; a 304 may name the length of what it stands for
_LENGTH = frozenset({b"content-length"})
_SET_HERE = frozenset({b"host", b"content-length"})
# Of one response header, and their number. aiohttp's own limits are 8 KiB, which real ones reach,
# and 128.
_MAX_HEADER_BYTES = 2**16
_MAX_HEADERS = 2000


class NativeLane:
    """Sends bytes to any HTTP upstream, over one shared pool of connections."""

    def __init__(self, timeouts: TimeoutSettings, *, max_connections: int) -> None:
        self._timeouts = timeouts
        self._max_connections = max_connections
        self._limits = aiohttp.ClientTimeout(total=None, sock_connect=timeouts.connect_s or None)
        self._session: aiohttp.ClientSession | None = None
        self._uploads: aiohttp.ClientSession | None = None
        self._proxied = bool(urllib.request.getproxies())
        self._routes: dict[tuple[str, URL], Route] = {}

    async def send(
        self,
        method: str,
        url: URL | httpx.URL,
        headers: RawHeaders,
        content: bytes | AsyncIterator[bytes],
        *,
        fresh: bool = False,
    ) -> LaneResponse:
        """Send one request; returns when the status line and headers are there.

        `fresh`: over a connection that is opened for it.

        Raises:
            StaleConnection: the connection had been used before, and was closed meanwhile.
            UpstreamUnreachable: no connection, or closed before an answer.
            UpstreamTimeout: connect, first-byte or total limit passed.
            UpstreamMalformed: the answer is not HTTP.
        """
        timeouts = self._timeouts
        limit, name = _first_byte_limit(timeouts)
        began = time.monotonic()
        CONNECTED.set(False)
        answer: LaneResponse
        if not isinstance(url, URL):  # of LiteLLM, whose headers are a whole head
            url = URL(str(url), encoded=True)
            headers = [(k.lower(), v) for k, v in headers]
            headers = end_to_end(headers, _SET_HERE)
        route = self._route(method, url, content, fresh=fresh)
        try:
            if route is not None:
                assert isinstance(content, bytes)
                answer = await self._exchange(route, headers, content)
            else:
                async with asyncio.timeout(limit):
                    answer = await self._request(method, url, headers, content)
        except aiohttp.ConnectionTimeoutError as exc:
            raise _translated(exc, url, timeouts) from exc
        except TimeoutError as exc:
            raise UpstreamTimeout(
                f"the upstream sent nothing within {limit:g} s (timeouts.{name})"
            ) from exc
        except (aiohttp.ClientError, ValueError, OSError) as exc:
            failure = _translated(exc, url, timeouts)
            reused = not CONNECTED.get() and time.monotonic() - began < _STALE_S
            if reused and isinstance(failure, UpstreamUnreachable):
                raise StaleConnection(failure.message, retryable=True) from exc
            raise failure from exc
        if answer.status < 200:
            await answer.aclose()
            raise UpstreamMalformed(f"the upstream answered with status {answer.status}")
        return answer

    async def _request(
        self,
        method: str,
        url: URL,
        headers: RawHeaders,
        content: bytes | AsyncIterator[bytes],
    ) -> NativeResponse:
        """The same by aiohttp alone."""
        guard = IdleGuard(self._timeouts.idle_s, self._timeouts.total_s)
        answer = await self._session_for(content).request(
            method,
            url,
            headers=_multidict(headers),
            data=_payload(content),
            allow_redirects=False,
            timeout=self._limits,
        )
        return NativeResponse(answer, guard)

    async def _exchange(self, route: Route, headers: RawHeaders, content: bytes) -> Http1Answer:
        """The answer to a POST over a connection of the pool."""
        head = route.head(headers, len(content))
        guard = IdleGuard(self._timeouts.first_byte_s, self._timeouts.total_s)
        answer = None
        try:
            with guard:
                connection = await route.connect(self._limits)
                answer = Http1Answer(connection, guard)
                await answer.ask(head, content)
        except BaseException:
            guard.stop()
            if answer is not None:
                await answer.aclose()
            raise
        guard.relimit(self._timeouts.idle_s)
        answer.headers = _relayed(answer.fields, answer.status)
        return answer

    def _route(
        self, method: str, url: URL, content: bytes | AsyncIterator[bytes], *, fresh: bool
    ) -> Route | None:
        """How to ask `url` without aiohttp's client; None for what only that can do."""
        if self._proxied or type(content) is not bytes or method == "HEAD":
            return None
        if url.scheme not in ("http", "https") or url.raw_user or url.raw_password:
            return None
        if fresh:
            return Route(method, url, self._session_for(None))
        route = self._routes.get((method, url))
        if route is None:
            if len(self._routes) >= _MOST_ROUTES:
                self._routes.clear()
            route = self._routes[method, url] = Route(method, url, self._session_for(content))
        return route

    async def aclose(self) -> None:
        """Close the pool."""
        for session in (self._session, self._uploads):
            if session is not None:
                await session.close()

    def _session_for(self, content: bytes | AsyncIterator[bytes] | None) -> aiohttp.ClientSession:
        """The pool; for a body that cannot be sent a second time, and for None, one without idle
        connections."""
        if isinstance(content, bytes):
            if self._session is None:
                self._session = self._open(Connector, keepalive_timeout=_KEEPALIVE_S)
            return self._session
        if self._uploads is None:
            self._uploads = self._open(UploadConnector)
        return self._uploads

    def _open(self, kind: type[Connector], **options: float) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(
            connector=kind(limit=self._max_connections, ttl_dns_cache=60, **options),
            cookie_jar=aiohttp.DummyCookieJar(),
            skip_auto_headers=_NEVER_ADD,
            trust_env=self._proxied,
            auto_decompress=False,
            read_bufsize=2**18,
            max_line_size=_MAX_HEADER_BYTES,
            max_field_size=_MAX_HEADER_BYTES,
            max_headers=_MAX_HEADERS,
        )


class StaleConnection(UpstreamUnreachable):
    """The upstream closed an idle connection just when it was used; it read nothing."""


class NativeResponse:
    """The upstream's answer, relayed byte for byte: nothing is decompressed or re-chunked."""

    __slots__ = ("_answer", "_guard", "_whole", "headers", "status", "usage")

    def __init__(self, answer: aiohttp.ClientResponse, guard: IdleGuard) -> None:
        self._answer = answer
        self._guard = guard
        self._whole = False
        self.status = answer.status
        self.headers = _relayed(answer.raw_headers, answer.status)
        self.usage: dict[str, Any] | None = None

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        try:
            with self._guard:
                chunk = await self._answer.content.readany()
        except TimeoutError as exc:
            raise UpstreamTimeout(f"the upstream {self._guard.verdict}") from exc
        except (aiohttp.ClientError, ValueError, OSError) as exc:
            raise UpstreamMalformed("the upstream's answer broke off before its end") from exc
        if not chunk:
            self._whole = True
            raise StopAsyncIteration
        return chunk

    async def aclose(self) -> None:
        """Release the connection, or close it when the body has not been read to its end."""
        self._guard.stop()
        if self._whole:
            self._answer.release()
        else:
            self._answer.close()


def _relayed(headers: Iterable[tuple[bytes, bytes]], status: int) -> RawHeaders:
    """An answer's headers as they may be sent on: with a length only where it is the body's."""
    given = [(k.lower(), v) for k, v in headers]
    other = status in _BODILESS or any(name == b"transfer-encoding" for name, _ in given)
    kept = end_to_end(given, _LENGTH if other else frozenset())
    if _CONTROL.search(b"".join([v for _, v in kept])):
        kept = [(k, _CONTROL.sub(b" ", v)) for k, v in kept]
    return kept


def _first_byte_limit(timeouts: TimeoutSettings) -> tuple[float | None, str]:
    """(longest wait for the status and headers in seconds, the setting of this limit)."""
    first, total = timeouts.first_byte_s or math.inf, timeouts.total_s or math.inf
    limit, name = min((first, "first_byte_s"), (total, "total_s"))
    return (None if math.isinf(limit) else limit), name


def _multidict(headers: RawHeaders) -> CIMultiDict[str]:
    return CIMultiDict([(k.decode("latin-1"), header_text(v)) for k, v in headers])


def _payload(content: bytes | AsyncIterator[bytes]) -> Any:
    if isinstance(content, bytes):
        return io.BytesIO(content) if len(content) >= _BIG_BODY else content or None
    return content


def _translated(exc: Exception, url: URL, timeouts: TimeoutSettings) -> UpstreamFailure:
    """aiohttp's error as ours."""
    where = f"{url.scheme}://{url.host_port_subcomponent}"
    if isinstance(exc, aiohttp.ConnectionTimeoutError):
        limit = timeouts.connect_s
        return UpstreamTimeout(
            f"no connection to {where} within {limit:g} s (timeouts.connect_s)", retryable=True
        )
    if isinstance(exc, aiohttp.ClientSSLError):
        said = getattr(exc, "certificate_error", exc.os_error)
        reason = getattr(said, "verify_message", "") or getattr(said, "reason", "no handshake")
        return UpstreamUnreachable(
            f"{where} cannot be reached over TLS: {reason} (SSL_CERT_FILE may name authorities)"
        )
    if isinstance(exc, (aiohttp.ClientResponseError, aiohttp.InvalidURL, ValueError)):
        return UpstreamMalformed(f"{where} did not answer in HTTP")
    if isinstance(exc, aiohttp.ClientConnectorDNSError):
        return UpstreamUnreachable(f"{where}: the host name cannot be resolved", retryable=True)
    if isinstance(exc, aiohttp.ClientConnectorError):
        reason = os.strerror(exc.errno) if exc.errno else exc.strerror or "refused"
        return UpstreamUnreachable(f"{where} cannot be reached: {reason}", retryable=True)
    return UpstreamUnreachable(f"{where} closed the connection before an answer", retryable=True)
