"""The floor: a relay that parses nothing, knows nothing and only moves bytes.

`python -m bench.relay --port N --upstream URL --transport aiohttp | httpx`
"""

from __future__ import annotations

import argparse
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import httpx
import uvicorn
from httpx_aiohttp import AiohttpTransport

_DROP = frozenset({b"host", b"content-length", b"transfer-encoding", b"connection"})
_Headers = list[tuple[bytes, bytes]]


class Relay:
    """An ASGI application over one of two client stacks."""

    def __init__(self, upstream: str, transport: str) -> None:
        self._upstream = upstream
        self._open = self._over_httpx if transport == "httpx" else self._over_aiohttp
        self._session: aiohttp.ClientSession | None = None
        self._transport: AiohttpTransport | None = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        if scope["method"] == "GET":
            await _respond(send, 200, [], _once(b"ready"))
            return
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        headers = [h for h in scope["headers"] if h[0] not in _DROP]
        await self._open(self._upstream + scope["path"], headers, body, send)

    async def _over_aiohttp(self, url: str, headers: _Headers, body: bytes, send: Any) -> None:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0), auto_decompress=False
            )
        text = [(k.decode("latin-1"), v.decode("latin-1")) for k, v in headers]
        async with self._session.post(url, data=body, headers=text) as response:
            got = [(k.lower(), v) for k, v in response.raw_headers if k.lower() not in _DROP]
            await _respond(send, response.status, got, response.content.iter_any())

    async def _over_httpx(self, url: str, headers: _Headers, body: bytes, send: Any) -> None:
        if self._transport is None:
            self._transport = AiohttpTransport(
                client=lambda: aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
            )
        request = httpx.Request("POST", url, headers=headers, content=body)
        response = await self._transport.handle_async_request(request)
        got = [(k.lower(), v) for k, v in response.headers.raw if k.lower() not in _DROP]
        stream: Any = response.stream
        try:
            await _respond(send, response.status_code, got, stream)
        finally:
            await stream.aclose()


async def _once(body: bytes) -> AsyncIterator[bytes]:
    yield body


async def _respond(send: Any, status: int, headers: _Headers, body: AsyncIterator[bytes]) -> None:
    await send({"type": "http.response.start", "status": status, "headers": headers})
    async for chunk in body:
        await send({"type": "http.response.body", "body": chunk, "more_body": True})
    await send({"type": "http.response.body", "body": b"", "more_body": False})


def main() -> None:
    """Serve until the process is ended."""
    parser = argparse.ArgumentParser(prog="python -m bench.relay", description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--upstream", required=True, help="scheme, host and port")
    parser.add_argument("--transport", choices=("aiohttp", "httpx"), default="aiohttp")
    options = parser.parse_args()
    config = uvicorn.Config(
        Relay(options.upstream, options.transport),
        port=options.port,
        http="httptools",
        loop="uvloop",
        ws="none",
        lifespan="off",
        log_level="error",
        access_log=False,
        server_header=False,
        date_header=False,
        backlog=4096,
    )
    uvicorn.Server(config).run()


if __name__ == "__main__":
    main()
