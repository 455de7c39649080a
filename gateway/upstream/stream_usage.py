"""Providers that refuse `stream_options`: known by their answer, later asked without it."""

from __future__ import annotations

from collections.abc import AsyncIterator

from gateway.upstream.base import LaneResponse, header
from gateway.upstream.deployments import Target
from gateway.wire.response_tee import ResponseWatch

_STATUSES = (400, 422)  # 422 is the answer of servers that validate with pydantic
_NAMES = (b"stream_options", b"include_usage")
_READ_BYTES = 2**16  # errors are short; a longer answer says something else
_MOST_KEPT = 1000  # models are named by clients


class UsageRefusals:
    """The targets that refused to report the usage of a stream, with the model asked for.

    One object serves all versions of the config: a target is known by its address.
    """

    def __init__(self) -> None:
        self._known: set[tuple[str, str]] = set()

    def includes(self, target: Target, model: str) -> bool:
        """Whether the target has refused it for this model."""
        return (str(target.api_base), model) in self._known

    def add(self, target: Target, model: str) -> None:
        """Do not ask the target for it again."""
        if len(self._known) >= _MOST_KEPT:
            self._known.clear()
        self._known.add((str(target.api_base), model))


class BegunResponse:
    """A response of which the first chunks have been read."""

    def __init__(
        self, response: LaneResponse, chunks: list[bytes], rest: AsyncIterator[bytes]
    ) -> None:
        self.status = response.status
        self.headers = response.headers
        self.usage = response.usage
        self._response = response
        self._chunks = chunks[::-1]
        self._rest = rest

    def __aiter__(self) -> AsyncIterator[bytes]:
        # An asynchronous generator would be registered with the loop, and finalised by it.
        return self

    async def __anext__(self) -> bytes:
        return self._chunks.pop() if self._chunks else await anext(self._rest)

    async def aclose(self) -> None:
        """See LaneResponse."""
        await self._response.aclose()


async def refuses_usage(response: LaneResponse) -> tuple[bool, LaneResponse]:
    """Whether an answer refuses `stream_options`, and the answer with all its bytes.

    Raises:
        UpstreamFailure: the answer broke off.
    """
    if response.status not in _STATUSES:
        return False, response
    watch = ResponseWatch(header(response.headers, b"content-encoding"), _READ_BYTES)
    chunks: list[bytes] = []
    rest = response.__aiter__()
    async for chunk in rest:
        watch.feed(chunk)
        chunks.append(chunk)
        if watch.opaque:
            break
    content = watch.content
    return any(name in content for name in _NAMES), BegunResponse(response, chunks, rest)
