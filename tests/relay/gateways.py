"""Gateways that only relay, and what tests say to them."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from gateway.config import settings_from_dict
from steering_gateway_testing import AppServer, ScriptedUpstream
from steering_gateway_testing.gateways import gateway_of
from steering_gateway_testing.patience import DEADLINE_MS
from steering_gateway_testing.text import echo
from tests.prepared_store import put_database

HELLO: dict[str, Any] = {
    "model": "m",
    "messages": [{"role": "user", "content": "one two three four"}],
}
STREAMED = {**HELLO, "stream": True}

RELAY_ONLY: dict[str, Any] = {
    "steering": {"mode": "off", "deadline_ms": DEADLINE_MS},
    "etraces": {"enabled": False},
    "router": {"backoff_s": 0},
    "server": {"drain_s": 1},
}
"""Nothing is steered, and failed calls are repeated without a pause."""


def merged(base: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with `more` laid over it, section by section."""
    out = dict(base)
    for key, value in more.items():
        known = out.get(key)
        both = isinstance(known, Mapping) and isinstance(value, Mapping)
        out[key] = {**known, **value} if both else value  # type: ignore[dict-item]
    return out


def a_gateway(
    api_base: str, directory: Path, settings: Mapping[str, Any] | None = None
) -> AppServer:
    """A gateway that is not started yet, before an upstream."""
    mapping = merged(RELAY_ONLY, {"default_upstream": {"api_base": api_base}})
    mapping = merged(mapping, {"storage": {"path": str(directory / "gateway.db")}})
    loaded = settings_from_dict(merged(mapping, settings or {}), {})
    put_database(loaded)
    return gateway_of(loaded)


def replace_settings(server: AppServer, raw: Mapping[str, Any]) -> None:
    """Put new settings in force, as a reload does, on the gateway's own loop."""
    runtime = server.app.runtime
    # A reload may not take the default upstream away.
    kept = {"default_upstream": {"api_base": runtime.settings.default_upstream.api_base}}
    settings = settings_from_dict(merged(RELAY_ONLY, {**kept, **raw}), {})

    async def put() -> None:
        assert runtime.replace(lambda: settings)

    loop = runtime.services.dispatcher._loop
    asyncio.run_coroutine_threadsafe(put(), loop).result(120)


def body_of(**fields: Any) -> dict[str, Any]:
    """A chat body with some fields of its own."""
    return {**HELLO, **fields}


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


@contextmanager
def renewed(shared: ScriptedUpstream) -> Iterator[ScriptedUpstream]:
    """A shared upstream with nothing scripted and nothing recorded yet, which echoes; an error of
    it, or a reply that nobody asked for, fails the test."""
    shared.reset()
    shared.default = echo
    yield shared
    assert not shared.errors
    assert not shared.pending
