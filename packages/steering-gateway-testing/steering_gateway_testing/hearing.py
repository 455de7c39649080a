"""What a plain client says to a gateway, and what it hears."""

from __future__ import annotations

import json
import socket
from dataclasses import dataclass
from typing import Any

import httpx

HELLO: dict[str, Any] = {
    "model": "m",
    "messages": [{"role": "user", "content": "one two three four"}],
}
STREAMED = {**HELLO, "stream": True}


@dataclass(frozen=True, slots=True, kw_only=True)
class Heard:
    """What a client heard: status, headers and body, and the error that ended it, if any."""

    status: int
    headers: httpx.Headers
    body: bytes
    broken: httpx.TransportError | None = None

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        """The error object of OpenAI's shape."""
        found = self.json["error"]
        assert set(found) == {"message", "type", "param", "code"}
        return dict(found)

    @property
    def events(self) -> list[Any]:
        """The JSON events of the stream, `[DONE]` as it is, what is no JSON as bytes."""
        blocks = [block.strip() for block in self.body.split(b"\n\n") if block.strip()]
        return [_event(block.removeprefix(b"data: ")) for block in blocks]


def _event(data: bytes) -> Any:
    if data == b"[DONE]":
        return "[DONE]"
    try:
        return json.loads(data)
    except ValueError:
        return data


def hear(client: httpx.Client, path: str = "/chat/completions", **kwargs: Any) -> Heard:
    """One POST, or another method, and whatever arrives until the connection is done."""
    method = kwargs.pop("method", "POST")
    body, broken = b"", None
    with client.stream(method, path, **kwargs) as answer:
        try:
            for chunk in answer.iter_raw():
                body += chunk
        except httpx.TransportError as error:
            broken = error
    return Heard(status=answer.status_code, headers=answer.headers, body=body, broken=broken)


def raw_exchange(port: int, request: bytes, *, timeout_s: float = 120) -> bytes:
    """Bytes as they are over a socket, and the whole answer; the request must ask to close."""
    with socket.create_connection(("127.0.0.1", port), timeout=timeout_s) as connection:
        connection.sendall(request)
        received = b""
        while chunk := connection.recv(65536):
            received += chunk
    return received


def raw_post(path: str, body: bytes, *headers: bytes) -> bytes:
    """A request that closes its connection, as bytes."""
    lines = [
        b"POST " + path.encode() + b" HTTP/1.1",
        b"host: localhost",
        b"content-type: application/json",
        b"content-length: " + str(len(body)).encode(),
        *([] if any(h.startswith(b"connection") for h in headers) else [b"connection: close"]),
        *headers,
    ]
    return b"\r\n".join([*lines, b"", body])
