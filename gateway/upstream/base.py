"""What both lanes return: one answer whose bytes are still to be read."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Protocol

RawHeaders = list[tuple[bytes, bytes]]

# RFC 9110 section 7.6.1, and what the two connections' own HTTP stacks must set for themselves.
HOP_BY_HOP = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)


class LaneResponse(Protocol):
    """An upstream's answer. Iterate once for the body; always `aclose()`."""

    status: int
    headers: RawHeaders
    """End-to-end headers, names in lower case, repeated ones kept, content-length when known."""

    usage: dict[str, Any] | None
    """Token usage, where the lane knows it (LiteLLM); None where it is in the body."""

    def __aiter__(self) -> AsyncIterator[bytes]:
        """The body as it arrives.

        Raises:
            UpstreamFailure: it broke off, stalled, or is not HTTP.
        """
        ...

    async def aclose(self) -> None:
        """Release the connection; ends the upstream call if it is still running."""
        ...


def header(headers: RawHeaders, name: bytes) -> bytes:
    """The first value of `name` (lower case), or empty."""
    for key, value in headers:
        if key == name:
            return value
    return b""


def end_to_end(headers: RawHeaders, drop: frozenset[bytes] = frozenset()) -> RawHeaders:
    """`headers` without the hop-by-hop ones, those that Connection names, and `drop`."""
    named = {
        token.strip().lower()
        for key, value in headers
        if key == b"connection"
        for token in value.split(b",")
    }
    unwanted = HOP_BY_HOP | drop | named if named or drop else HOP_BY_HOP
    return [(k, v) for k, v in headers if k not in unwanted]
