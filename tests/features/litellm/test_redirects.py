"""Redirects of a provider: no key follows them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NamedTuple

import httpx
import pytest
from aiohttp import web
from yarl import URL

from gateway.config import TimeoutSettings
from gateway.features.litellm.credential_hosts import Destination
from gateway.features.litellm.transport import CallTransport, ProviderCall, current_call
from gateway.upstream.native import NativeLane


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect_to_another_origin_gets_no_key(status: int) -> None:
    """By whatever header an adapter sends it, and with a hop at the first host before."""
    arrived: list[web.BaseRequest] = []

    async def elsewhere(request: web.BaseRequest) -> web.Response:
        arrived.append(request)
        return web.Response()

    async def provider(request: web.BaseRequest) -> web.Response:
        where = "/hop" if request.path == "/" else f"http://127.0.0.1:{other.port}/"
        return web.Response(status=status, headers={"location": where})

    other = await _listening(elsewhere)
    first = await _listening(provider)
    lane = NativeLane(TimeoutSettings(), max_connections=4)
    call = ProviderCall(send=lane.send, to=Destination(provider="elevenlabs"))
    token = current_call.set(call)
    try:
        headers = [(b"authorization", b"Bearer of-the-client")]
        to = URL(f"http://127.0.0.1:{first.port}/v1/responses")
        answer = await lane.send("GET", to, headers, b"")
        assert answer.status == status  # the client is told, and nothing is followed for it
        await answer.aclose()
        transport = CallTransport(httpx.AsyncHTTPTransport())
        async with httpx.AsyncClient(transport=transport, follow_redirects=True) as client:
            url = f"http://127.0.0.1:{first.port}/"
            with pytest.raises(httpx.TransportError, match="redirected the call"):
                await client.post(url, headers={"xi-api-key": "key-of-the-provider"})
    finally:
        current_call.reset(token)
        await lane.aclose()
        await first.runner.cleanup()
        await other.runner.cleanup()
    assert arrived == []


class Listening(NamedTuple):
    """A server that listens, and where."""

    runner: web.ServerRunner
    port: int


async def _listening(handler: Callable[[web.BaseRequest], Awaitable[web.Response]]) -> Listening:
    runner = web.ServerRunner(web.Server(handler))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    return Listening(runner, runner.addresses[0][1])
