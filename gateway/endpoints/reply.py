"""Answers that the gateway makes itself."""

from __future__ import annotations

from typing import Any

import orjson

from gateway.endpoints.body import Send
from gateway.errors import GatewayError
from gateway.upstream.base import RawHeaders


async def send_json(send: Send, status: int, payload: Any) -> None:
    """Send one JSON answer."""
    await send_bytes(send, status, orjson.dumps(payload), b"application/json")


async def send_bytes(send: Send, status: int, body: bytes, content_type: bytes) -> None:
    """Send one answer of any media type."""
    headers = [(b"content-type", content_type), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def asks_for_websocket(headers: RawHeaders) -> bool:
    """Whether the client wants to speak WebSocket from here on."""
    asked = b",".join(value for name, value in headers if name == b"upgrade").lower()
    return b"websocket" in (token.strip() for token in asked.split(b","))


def refuse_websocket(headers: RawHeaders) -> None:
    """Refuse a request for a WebSocket; `Upgrade` names what is spoken instead.

    Source: RFC 9110 sections 7.8 and 15.5.22.

    Raises:
        GatewayError: status 426.
    """
    if asks_for_websocket(headers):
        raise GatewayError(
            "WebSocket is not offered on this route; use HTTP",
            status=426,
            type="invalid_request_error",
            code="websocket_not_supported",
            headers=(("upgrade", "HTTP/1.1"), ("connection", "Upgrade")),
            label="upgrade_refused",
        )
