"""The native lane: the client's bytes to an upstream that speaks the client's wire, and back.

The requests go through httpx's aiohttp transport itself, without the httpx client around it: the
client's redirects, cookies, auth flows and decoding are all things a proxy must not do.
"""

from __future__ import annotations

import asyncio
import urllib.request
from collections.abc import AsyncIterator
from typing import Any, cast

import aiohttp
import httpx
from httpx_aiohttp import AiohttpTransport

from gateway.config import TimeoutSettings
from gateway.errors import UpstreamFailure, UpstreamMalformed, UpstreamTimeout, UpstreamUnreachable
from gateway.upstream.base import RawHeaders, end_to_end

# aiohttp would add these to a request that does not have them; a proxy adds nothing.
_NEVER_ADD = frozenset({"Accept", "Accept-Encoding", "User-Agent", "Content-Type"})
_KEEPALIVE_S = 30.0  # below the idle limits of common load balancers (60 s and above)


class NativeLane:
    """Sends bytes to any HTTP upstream, over one shared pool of connections."""

    def __init__(self, timeouts: TimeoutSettings, *, max_connections: int) -> None:
        self._timeouts = timeouts
        self._max_connections = max_connections
        self._transport = AiohttpTransport(client=self._session)
        extension: dict[str, float] = {}
        if timeouts.connect_s:
            extension["connect"] = timeouts.connect_s
        self._extensions = {"timeout": extension}

    def _session(self) -> aiohttp.ClientSession:
        connector = aiohttp.TCPConnector(
            limit=self._max_connections, keepalive_timeout=_KEEPALIVE_S, ttl_dns_cache=60
        )
        return aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            skip_auto_headers=_NEVER_ADD,
            trust_env=bool(urllib.request.getproxies()),
            timeout=aiohttp.ClientTimeout(total=None),
            read_bufsize=2**18,
        )

    async def send(
        self,
        method: str,
        url: httpx.URL,
        headers: RawHeaders,
        content: bytes | AsyncIterator[bytes],
    ) -> NativeResponse:
        """Send one request; returns when the status line and headers are there.

        Raises:
            UpstreamUnreachable: no connection, or closed before an answer.
            UpstreamTimeout: connect or first-byte limit passed.
            UpstreamMalformed: the answer is not HTTP.
        """
        request = httpx.Request(
            method, url, headers=headers, content=content, extensions=self._extensions
        )
        try:
            async with asyncio.timeout(self._timeouts.first_byte_s or None):
                response = await self._transport.handle_async_request(request)
        except TimeoutError as exc:
            limit = self._timeouts.first_byte_s
            raise UpstreamTimeout(
                f"the upstream sent nothing within {limit:g} s (timeouts.first_byte_s)",
                retryable=False,
            ) from exc
        except (httpx.HTTPError, aiohttp.ClientError, ValueError, OSError) as exc:
            raise _translated(exc, url, self._timeouts) from exc
        return NativeResponse(response, self._timeouts.idle_s)

    async def aclose(self) -> None:
        """Close the pool."""
        await self._transport.aclose()


class NativeResponse:
    """The upstream's answer, relayed byte for byte: nothing is decompressed or re-chunked."""

    __slots__ = ("_guard", "_iterator", "_stream", "headers", "status", "usage")

    def __init__(self, response: httpx.Response, idle_s: float) -> None:
        self._stream = cast(Any, response.stream)
        self._iterator = self._stream.__aiter__()
        self._guard = IdleGuard(idle_s)
        self.status = response.status_code
        raw = [(k.lower(), v) for k, v in response.headers.raw]
        self.headers: RawHeaders = end_to_end(raw)
        self.usage: dict[str, Any] | None = None

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        try:
            with self._guard:
                return await self._iterator.__anext__()  # type: ignore[no-any-return]
        except TimeoutError as exc:
            raise UpstreamTimeout(
                f"the upstream stalled for {self._guard.limit_s:g} s (timeouts.idle_s)"
            ) from exc
        except (httpx.HTTPError, aiohttp.ClientError, ValueError, OSError) as exc:
            raise UpstreamMalformed("the upstream's answer broke off before its end") from exc

    async def aclose(self) -> None:
        """Release the connection, or close it when the body has not been read to its end."""
        self._guard.stop()
        await self._iterator.aclose()
        await self._stream.aclose()


class IdleGuard:
    """Each `with` block that lasts longer than `limit_s` seconds ends with TimeoutError.

    One timer a stream that looks at the clock when it rings, instead of one armed per chunk: a
    stream of a thousand chunks pays for a handful of timers.
    """

    __slots__ = ("_entered", "_expired", "_handle", "_loop", "_task", "limit_s")

    def __init__(self, limit_s: float) -> None:
        self.limit_s = limit_s
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[Any] | None = None
        self._entered = 0.0
        self._handle: asyncio.TimerHandle | None = None
        self._expired = False

    def __enter__(self) -> None:
        if self.limit_s:
            self._entered = self._loop.time()
            self._task = asyncio.current_task()
            if self._handle is None:
                self._handle = self._loop.call_later(self.limit_s, self._ring)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        task, self._task = self._task, None
        if self._expired and task is not None:
            self._expired = False
            if task.uncancel() == 0 and kind is asyncio.CancelledError:
                raise TimeoutError

    def stop(self) -> None:
        """Disarm the timer."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _ring(self) -> None:
        left = self.limit_s
        if self._task is not None:
            left = self._entered + self.limit_s - self._loop.time()
        if left > 0:
            self._handle = self._loop.call_later(left, self._ring)
        elif self._task is not None:
            self._expired = True
            self._handle = None
            self._task.cancel()


def _translated(exc: Exception, url: httpx.URL, timeouts: TimeoutSettings) -> UpstreamFailure:
    """The transport's error as ours.

    Looked up on aiohttp's own error: the httpx transport calls every closed connection a connect
    timeout.
    """
    cause = exc.__cause__ if isinstance(exc.__cause__, Exception) else exc
    where = f"{url.scheme}://{url.netloc.decode('ascii', 'replace')}"
    if isinstance(cause, (aiohttp.ConnectionTimeoutError, TimeoutError)):
        limit = timeouts.connect_s
        return UpstreamTimeout(
            f"no connection to {where} within {limit:g} s (timeouts.connect_s)", retryable=True
        )
    if isinstance(cause, (aiohttp.ClientResponseError, aiohttp.InvalidURL, ValueError)):
        return UpstreamMalformed(f"{where} did not answer in HTTP")
    if isinstance(cause, aiohttp.ClientConnectorDNSError):
        return UpstreamUnreachable(f"{where}: the host name cannot be resolved", retryable=True)
    if isinstance(cause, aiohttp.ClientConnectorError):
        reason = cause.strerror or "refused"
        return UpstreamUnreachable(f"{where} cannot be reached: {reason}", retryable=True)
    return UpstreamUnreachable(f"{where} closed the connection before an answer", retryable=True)
