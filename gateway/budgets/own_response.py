"""A final answer of the gateway's own, in the form in which lanes give answers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from gateway.upstream.base import RawHeaders


class OwnResponse:
    """`LaneResponse` over bytes that are there already; `code`: why no model was asked."""

    status = 200
    usage: dict[str, Any] | None = None

    def __init__(self, content: bytes, *, stream: bool, code: str) -> None:
        self._content = content
        kind = b"text/event-stream; charset=utf-8" if stream else b"application/json"
        self.headers: RawHeaders = [(b"content-type", kind)]
        if not stream:
            self.headers.append((b"content-length", str(len(content)).encode()))
        self.headers.append((b"x-gateway-stopped", code.encode()))

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """See LaneResponse."""
        yield self._content

    async def aclose(self) -> None:
        """See LaneResponse."""
