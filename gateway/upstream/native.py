"""The native lane: the client's bytes to an upstream that speaks the client's dialect, and back.

An HTTP client's own redirects, cookies, URL normalisation, joining of repeated headers and decoding
are all things a proxy must not do: answers are read by `gateway/upstream/http1.py`."""

import asyncio
import re
import urllib.request
from collections.abc import AsyncIterator
from functools import lru_cache, partial
from math import inf

from yarl import URL

from gateway.config import TimeoutSettings
from gateway.errors import UpstreamMalformed, UpstreamTimeout, UpstreamUnreachable
from gateway.upstream.base import LaneResponse
from gateway.upstream.connections import Pool, Route, closed_early, where
from gateway.upstream.http1 import BODILESS, Http1Answer, IdleGuard
from gateway.wire.headers import RawHeaders, end_to_end, header

_KEEPALIVE_S = 30.0  # below the idle limits of common load balancers (60 s and above)
_CONTROL = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")  # RFC 9110 section 5.5: may become spaces
_MOST_ROUTES = 512  # as many URLs are kept prepared
_LENGTH = frozenset({b"content-length"})
_SET_HERE = frozenset({b"host", b"content-length"})


class NativeLane:
    """Sends bytes to any HTTP upstream, over one shared pool of connections."""

    def __init__(self, timeouts: TimeoutSettings, *, max_connections: int):
        self._timeouts = timeouts
        self._pool, self._uploads = (
            Pool(limit=max_connections, connect_s=timeouts.connect_s, keepalive_s=keepalive_s)
            for keepalive_s in (_KEEPALIVE_S, 0)
        )
        proxied = bool(urllib.request.getproxies())
        self._route = lru_cache(_MOST_ROUTES)(partial(Route, pool=self._pool, proxied=proxied))
        self._route_once = partial(Route, pool=self._uploads, proxied=proxied)

    async def send(
        self,
        method: str,
        url: URL | str,
        headers: RawHeaders,
        content: bytes | AsyncIterator[bytes],
        *,
        fresh: bool = False,
    ) -> LaneResponse:
        """Send one request; returns when the status line and headers are there. `fresh`: over a
        connection that is opened for it. Raises: StaleConnection: the connection had been used
        before, and was closed meanwhile; UpstreamUnreachable: no connection, or closed before an
        answer; UpstreamTimeout; UpstreamMalformed: the answer is not HTTP."""
        if not isinstance(url, URL):  # of LiteLLM, whose headers are a whole head
            url = URL(url, encoded=True)
            headers = end_to_end([(k.lower(), v) for k, v in headers], _SET_HERE)
        try:
            once = fresh or not isinstance(content, bytes)  # such a body cannot be sent twice
            if once:
                route = self._route_once(method, url)
            else:
                route = self._route(method, url)
            answer = await self._exchange(route, headers, content, without_body=method == "HEAD")
        except TimeoutError as exc:
            first = self._timeouts.first_byte_s
            total = self._timeouts.total_s
            limit, name = min((first or inf, "first_byte_s"), (total or inf, "total_s"))
            raise UpstreamTimeout(
                f"the upstream sent nothing within {limit:g} s (timeouts.{name})"
            ) from exc
        except ValueError as exc:
            raise UpstreamMalformed(f"{where(url)} did not answer in HTTP") from exc
        except OSError as exc:
            raise closed_early(where(url)) from exc
        if answer.status < 200:
            await answer.aclose()
            raise UpstreamMalformed(f"the upstream answered with status {answer.status}")
        return answer

    async def _exchange(
        self,
        route: Route,
        headers: RawHeaders,
        content: bytes | AsyncIterator[bytes],
        *,
        without_body: bool,
    ) -> Http1Answer:
        """The answer to a request over a connection of the pool."""
        length: int | None
        if isinstance(content, bytes):
            length = len(content)
        else:  # None: the body is sent in chunks
            announced = header(headers, b"content-length")
            length = None
            if announced.isdigit():
                length = int(announced)
        headers = [h for h in headers if h[0] != b"content-length"]
        guard = IdleGuard(self._timeouts.first_byte_s, self._timeouts.total_s)
        answer = None
        reused = False
        try:
            with guard:
                head = route.head(headers, length)
                connection = await route.pool.connect(route.origin)
                reused = connection.is_used
                connection.is_used = True
                answer = Http1Answer(connection, guard, without_body=without_body)
                await answer.ask(head, content, chunked=length is None)
        except BaseException as exc:
            guard.stop()
            if answer is not None:
                await answer.aclose()
            if reused and isinstance(exc, ConnectionError):
                raise StaleConnection(
                    closed_early(where(route.origin.url)).message, retryable=True
                ) from exc
            raise
        guard.relimit(self._timeouts.idle_s)
        # A length is sent on only where it is the body's.
        given = [(k.lower(), v) for k, v in answer.fields]
        if _CONTROL.search(b"".join([v for _, v in given])):
            given = [(k, _CONTROL.sub(b" ", v)) for k, v in given]
        other = answer.status in BODILESS or any(k == b"transfer-encoding" for k, _ in given)
        answer.headers = end_to_end(given, _LENGTH if other else frozenset())
        return answer

    async def aclose(self) -> None:
        """Close the connections."""
        self._pool.close()
        self._uploads.close()
        await asyncio.sleep(0)  # in which their sockets are closed


class StaleConnection(UpstreamUnreachable):
    """The upstream closed a connection that had been used before, without an answer. It may have
    closed it while it was idle and read nothing, or have executed the request."""
