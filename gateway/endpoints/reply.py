"""Answers that the gateway makes itself."""

from __future__ import annotations

from typing import Any

import orjson

from gateway.endpoints.body import Send


async def send_json(send: Send, status: int, payload: Any) -> None:
    """Send one JSON answer."""
    await send_bytes(send, status, orjson.dumps(payload), b"application/json")


async def send_bytes(send: Send, status: int, body: bytes, content_type: bytes) -> None:
    """Send one answer of any media type."""
    headers = [(b"content-type", content_type), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
