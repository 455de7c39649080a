"""Between LiteLLM and the network: records what one call really sent and received.

LiteLLM rewrites errors, retries a refused connection behind its caller's back, keeps a connection
open after a cancel, and has its own time limits. So each of its HTTP clients gets a
`CallTransport`, which finds the current call in a context variable, sends the request through the
native lane's pool under the gateway's limits, and notes what the provider answered and what broke.
"""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import AsyncIterator
from contextvars import ContextVar
from typing import Protocol

import httpx

from gateway.errors import UpstreamFailure, UpstreamMalformed
from gateway.upstream.base import LaneResponse, RawHeaders, header
from gateway.upstream.credentials import is_foreign_host
from gateway.upstream.litellm_lane.events import ReadableEvents
from gateway.wire.response_tee import READABLE, Inflater

_TAIL_BYTES = 1 << 14
_MOST_AT_ONCE = 2**26  # bytes that one chunk may unpack to; no provider's chunk comes near
_MARK_BYTES = 32  # longer than any end mark
SHORTEST_SECRET = 8  # anything shorter would blank out ordinary words
_SECRET_HEADERS = ("authorization", "x-api-key", "api-key", "x-goog-api-key")

_RETRIED = frozenset({408, 409, 429, *range(500, 600)})
"""Answers after which the clients inside LiteLLM send a call again, whatever they are told."""

current_call: ContextVar[ProviderCall | None] = ContextVar("litellm_call", default=None)


class Wire(Protocol):
    """The part of the native lane that sends bytes."""

    async def send(
        self, method: str, url: httpx.URL, headers: RawHeaders, content: bytes
    ) -> LaneResponse:
        """The answer to one request. Raises: UpstreamFailure."""
        ...


@dataclasses.dataclass(slots=True, kw_only=True)
class ProviderCall:
    """One call to a provider as the network saw it; filled in while it runs."""

    native: Wire

    status: int | None = None
    """Of the last answer; None before there is one."""

    headers: RawHeaders = dataclasses.field(default_factory=list)
    """Of the last answer, end-to-end."""

    error_body: bytes | None = None
    """The body of an answer of 400 and above, decoded."""

    end_marks: tuple[bytes, ...] = ()
    """The bytes that end a turn, for adapters that report every chunk as the last one."""

    tail: bytes = b""
    """The end of the body read so far, which may contain a streamed error event."""

    failure: UpstreamFailure | None = None
    """What broke below HTTP: connection, time limit."""

    requests: int = 0
    """How many requests went to the provider."""

    secrets: set[str] = dataclasses.field(default_factory=set)
    """The credentials that were sent, to be removed from error messages."""

    provider: str = ""
    """LiteLLM's name of the provider that is called."""

    base_host: str = ""
    """The host of the configured base URL; empty without one."""

    withheld: frozenset[str] = frozenset()
    """Keys of other providers, which LiteLLM may find in the environment: never sent."""

    redirected_from: str = ""
    """The origin that answered the call itself with a redirect; empty after any other answer."""

    _ended: bool = False
    _open: LaneResponse | None = None

    def refusal(self, request: httpx.Request) -> UpstreamFailure | None:
        """Why a request may not go out: it carries the key of another provider, or would go to a
        host that is another provider's, or to which a provider has redirected it."""
        words = {word for value in request.headers.values() for word in value.split()}
        words.update(request.url.params.values())
        host = request.url.host
        carries = _carries(request)
        if not self.withheld.isdisjoint(words):
            return _refused(
                f"there is no key for provider {self.provider!r}: set litellm_params.api_key, or "
                "the provider's own variable"
            )
        if carries and host != self.base_host and is_foreign_host(self.provider, host, words):
            return _refused(
                f"provider {self.provider!r} has no address: set litellm_params.api_base; without "
                f"one, its key would go to {host}"
            )
        if self.redirected_from not in ("", _origin(request.url)):
            return _refused(f"the provider redirected the call to {host}, where no key of it goes")
        return None

    @property
    def refused_before(self) -> tuple[int, RawHeaders, bytes] | None:
        """The answer that a repeated request gets without being sent: the one it got before."""
        if self.status is None or self.status not in _RETRIED or self.error_body is None:
            return None
        plain = (b"content-encoding", b"content-length", b"transfer-encoding")
        return self.status, [h for h in self.headers if h[0] not in plain], self.error_body

    def note_request(self, request: httpx.Request) -> None:
        """Count an attempt, and remember the credentials it carries."""
        self.requests += 1
        self.status, self.headers, self.error_body, self.failure = None, [], None, None
        values = [request.headers.get(name, "") for name in _SECRET_HEADERS]
        values.append(request.url.params.get("key", ""))
        words = (word for value in values for word in value.split())
        self.secrets.update(word for word in words if len(word) >= SHORTEST_SECRET)

    def note_answer(self, answer: LaneResponse) -> None:
        """Keep status and headers, and the connection for `close()`."""
        self.status, self.headers, self._open = answer.status, answer.headers, answer

    def note_bytes(self, chunk: bytes) -> None:
        """Keep the tail; look for the end of the turn, also across two reads."""
        window = self.tail[-_MARK_BYTES:] + chunk
        self._ended = self._ended or any(mark in window for mark in self.end_marks)
        self.tail = (self.tail + chunk)[-_TAIL_BYTES:]

    @property
    def ended(self) -> bool:
        """Whether the provider ended the turn; True where no end mark is expected."""
        return self._ended or not self.end_marks

    def failed(self, failure: UpstreamFailure) -> httpx.TransportError:
        """Keep the failure; gives an error that LiteLLM does not retry itself."""
        self.failure = failure
        kind = httpx.TimeoutException if failure.status == 504 else httpx.NetworkError
        return kind(failure.message)

    async def close(self) -> None:
        """Close the provider's connection now, even if it is still sending."""
        answer, self._open = self._open, None
        if answer is not None:
            await answer.aclose()


def _carries(request: httpx.Request) -> bool:
    """Whether a request has a credential; an image that a client names is fetched without one."""
    return request.method == "POST" or any(name in request.headers for name in _SECRET_HEADERS)


def _origin(url: httpx.URL) -> str:
    """Whom a URL asks: its scheme, host and port."""
    return f"{url.scheme}://{url.netloc.decode('ascii')}"


def _refused(message: str) -> UpstreamFailure:
    return UpstreamFailure(message, status=401, type="authentication_error", code="invalid_api_key")


class CallTransport(httpx.AsyncBaseTransport):
    """The transport of LiteLLM's HTTP clients; holds no state but works for its context's call.

    Outside a call of the lane (another user of LiteLLM in this process) `fallback` does the work.
    """

    def __init__(self, fallback: httpx.AsyncBaseTransport) -> None:
        self._fallback = fallback

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """The answer to one request.

        Raises:
            httpx.TransportError: no answer; the call's `failure` says why.
        """
        call = current_call.get()
        if call is None:
            return await self._fallback.handle_async_request(request)
        # Images and tokens are fetched on the way; only a POST gets the provider's answer.
        if (refusal := call.refusal(request)) is not None:
            raise call.failed(refusal)
        watched = request.method == "POST"
        if watched and call.failure is not None:
            raise call.failed(call.failure)  # a retry of LiteLLM's own: the dispatcher retries
        if watched and (told := call.refused_before) is not None:
            status, headers, content = told
            return httpx.Response(status, headers=headers, content=content, request=request)
        if watched:
            call.note_request(request)
        if call.end_marks:
            request.headers["accept-encoding"] = "identity"
        content = await request.aread()
        try:
            answer = await call.native.send(
                request.method, request.url, request.headers.raw, content
            )
        except UpstreamFailure as exc:
            raise (call.failed(exc) if watched else httpx.NetworkError(exc.message)) from exc
        if watched:
            call.note_answer(answer)
        # What follows a call has its headers; an image is fetched from wherever it is.
        follows = _carries(request) or bool(call.redirected_from)
        moved = 300 <= answer.status < 400 and follows
        call.redirected_from = _origin(request.url) if moved else ""
        coding = header(answer.headers, b"content-encoding").strip().lower()
        if coding not in READABLE and coding:
            await answer.aclose()
            if answer.status >= 400:  # the status says enough
                call.error_body = b""
                return httpx.Response(answer.status, content=b"", request=request)
            named = coding.decode("latin-1")
            raise call.failed(
                UpstreamMalformed(
                    f"the provider answered in a coding that was not asked for: {named}"
                )
            )
        headers, events = answer.headers, _events_of(answer)
        inflater = Inflater() if coding not in (b"", b"identity") else None
        if events is not None or inflater is not None:  # LiteLLM gets them uncompressed
            headers = [h for h in headers if h[0] not in (b"content-encoding", b"content-length")]
        body = _WatchedBody(answer, call, events, inflater)
        response = httpx.Response(answer.status, headers=headers, stream=body, request=request)
        if watched and answer.status >= 400:
            call.error_body = await _error_body(response)
            call.failure = None  # a body that cannot be read: the status says enough
        return response

    async def aclose(self) -> None:
        """Close the fallback; the connections of calls belong to the native lane."""
        await self._fallback.aclose()


def _events_of(answer: LaneResponse) -> ReadableEvents | None:
    """What makes a successful event stream readable; None for any other answer."""
    kind = header(answer.headers, b"content-type").lower()
    if answer.status >= 300 or not kind.startswith(b"text/event-stream"):
        return None
    return ReadableEvents()


async def _error_body(response: httpx.Response) -> bytes:
    """The decoded body of an error answer; empty when its compression is broken."""
    try:
        return await response.aread()
    except (httpx.DecodingError, httpx.TransportError):
        return b""


class _WatchedBody(httpx.AsyncByteStream):
    """A response body that leaves its tail and its failure with the call."""

    def __init__(
        self,
        answer: LaneResponse,
        call: ProviderCall,
        events: ReadableEvents | None,
        inflater: Inflater | None,
    ) -> None:
        self._answer = answer
        self._call = call
        self._events = events
        self._inflater = inflater

    async def __aiter__(self) -> AsyncIterator[bytes]:
        call, events = self._call, self._events
        try:
            async for chunk in self._answer:
                content = self._unpacked(chunk)
                call.note_bytes(content)
                if ready := content if events is None else events.feed(content):
                    yield ready
            if self._inflater is not None and self._inflater.cut:
                raise UpstreamMalformed("the provider's answer broke off before its end")
        except UpstreamFailure as exc:
            raise call.failed(exc) from exc
        if events is not None and (rest := events.flush()):
            yield rest

    def _unpacked(self, chunk: bytes) -> bytes:
        """The chunk without its compression, which may be of several members."""
        if self._inflater is None:
            return chunk
        try:
            return self._inflater.decompress(chunk, _MOST_AT_ONCE)
        except zlib.error as exc:
            raise UpstreamMalformed("the provider's answer is not compressed as announced") from exc

    async def aclose(self) -> None:
        await self._answer.aclose()
