"""Refuses WebSockets with an answer that makes clients use HTTP at once."""

from __future__ import annotations

from gateway.errors import GatewayError
from gateway.upstream.base import RawHeaders


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
