"""Answers that pages of `server.trusted_origins` may read (CORS, Fetch standard section 3.2)."""

from __future__ import annotations

from gateway.endpoints.body import Message, Scope, Send
from gateway.upstream.base import header

_MAX_AGE_S = 600  # how long a browser may keep the answer to a preflight
_OURS = (b"access-control-allow-origin", b"access-control-expose-headers")


def readable_by(send: Send, origin: str) -> Send:
    """`send`, with the headers that let pages of `origin` read the answer."""
    allowed = origin.encode("latin-1")

    async def sent(message: Message) -> None:
        if message["type"] == "http.response.start":
            # The upstream's own are for pages that call it directly.
            kept = [h for h in message["headers"] if h[0].lower() not in _OURS]
            ours = [(_OURS[0], allowed), (_OURS[1], b"*"), (b"vary", b"origin")]
            message["headers"] = [*kept, *ours]
        await send(message)

    return sent


def is_preflight(scope: Scope) -> bool:
    """Whether a browser asks if a page may send a request, before it sends that."""
    headers = scope["headers"]
    return scope["method"] == "OPTIONS" and bool(header(headers, b"access-control-request-method"))


async def answer_preflight(scope: Scope, send: Send) -> None:
    """Allow the method and the headers that the page wants to send."""
    asked = scope["headers"]
    method = header(asked, b"access-control-request-method")
    answer = [
        (b"access-control-allow-methods", method),
        (b"access-control-max-age", str(_MAX_AGE_S).encode()),
    ]
    if wanted := header(asked, b"access-control-request-headers"):
        answer.append((b"access-control-allow-headers", wanted))
    if header(asked, b"access-control-request-private-network") == b"true":
        answer.append((b"access-control-allow-private-network", b"true"))
    await send({"type": "http.response.start", "status": 204, "headers": answer})
    await send({"type": "http.response.body", "body": b""})
