"""WebSockets on `/v1/realtime`: a real client and a real server, with the gateway in between."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from steering_gateway_testing import AppServer

Start = Callable[..., AppServer]
KEY = "k" * 40


class Provider:
    """A provider of live sessions: it echoes each frame, and ends or refuses as it is asked to."""

    def __init__(self) -> None:
        self.heads: list[Any] = []
        self.url = ""

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """One session."""
        self.heads.append(request)
        if request.query.get("model") == "refused":
            error = {"error": {"message": "no such model"}}
            return web.json_response(error, status=404, headers={"x-request-id": "theirs"})
        socket = web.WebSocketResponse(protocols=("realtime",), max_msg_size=0, compress=False)
        await socket.prepare(request)
        await socket.send_json({"type": "session.created"})
        async for message in socket:
            if message.data == "end":
                await socket.close(code=4000, message=b"as asked")
            elif message.type is aiohttp.WSMsgType.TEXT:
                await socket.send_str(message.data)
            else:
                await socket.send_bytes(message.data)
        return socket


@pytest.fixture
async def provider() -> AsyncIterator[Provider]:
    """A running provider."""
    provider, app = Provider(), web.Application()
    app.router.add_get("/v1/realtime", provider.handle)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    provider.url = f"http://{host}:{port}/v1"
    yield provider
    await runner.cleanup()


async def started(gateway_server: Start, provider: Provider, **settings: Any) -> AppServer:
    """A gateway before the provider."""
    upstream = {"default_upstream": {"api_base": provider.url}}
    return await asyncio.to_thread(gateway_server, {**upstream, **settings})


async def test_frames_cross_untouched(gateway_server: Start, provider: Provider) -> None:
    """Text, binary, large and empty frames, the subprotocol, the key and the closing code."""
    gateway = await started(gateway_server, provider)
    async with (
        aiohttp.ClientSession() as session,
        session.ws_connect(
            f"{gateway.url}/v1/realtime?model=gpt-realtime",
            protocols=("realtime",),
            headers={"authorization": "Bearer sk-mine", "x-gateway-mode": "off"},
            max_msg_size=0,
        ) as socket,
    ):
        assert socket.protocol == "realtime"
        assert await socket.receive_json() == {"type": "session.created"}
        for text in ("one", "", "\u00e9" * 100_000):
            await socket.send_str(text)
            assert await socket.receive_str() == text
        data = bytes(range(256)) * 8192
        await socket.send_bytes(data)
        assert await socket.receive_bytes() == data
        await asyncio.gather(*(socket.send_str(str(n)) for n in range(50)))
        assert {await socket.receive_str() for _ in range(50)} == {str(n) for n in range(50)}
        await socket.send_str("end")
        last = await socket.receive()
        assert last.type is aiohttp.WSMsgType.CLOSE
        assert (last.data, last.extra) == (4000, "as asked")
    head = provider.heads[0]
    assert head.query_string == "model=gpt-realtime"
    assert head.headers["authorization"] == "Bearer sk-mine"
    assert "x-gateway-mode" not in head.headers


async def test_a_refusal_is_relayed_as_an_answer(gateway_server: Start, provider: Provider) -> None:
    """Status, body and headers of the provider's own error; an unreachable one is 502."""
    gateway = await started(gateway_server, provider)
    nobody = await started(
        gateway_server, provider, default_upstream={"api_base": "http://127.0.0.1:9/v1"}
    )
    async with aiohttp.ClientSession() as session:
        for url, status in ((gateway.url, 404), (nobody.url, 502)):
            with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
                await session.ws_connect(f"{url}/v1/realtime?model=refused")
            assert refused.value.status == status
        plain = await session.get(f"{gateway.url}/v1/realtime?model=refused")
        assert plain.status == 404
        assert (await plain.json())["error"]["message"] == "no such model"


async def test_a_deployment_is_asked_with_its_own_key(
    gateway_server: Start, provider: Provider
) -> None:
    """Its model and key go out; the gateway's key does not, and none or a wrong one gets 401."""
    live = {"model": "openai/gpt-realtime-2", "api_base": provider.url, "api_key": "sk-operator"}
    gateway = await started(
        gateway_server,
        provider,
        default_upstream={"api_base": "http://127.0.0.1:9/v1"},
        model_list=[{"model_name": "live", "litellm_params": live}],
        auth={"gateway_keys": {"team": KEY}},
    )
    url = f"{gateway.url}/v1/realtime?model=live&intent=transcription"
    async with aiohttp.ClientSession() as session:
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            await session.ws_connect(url)
        assert refused.value.status == 401
        assert not provider.heads
        async with session.ws_connect(url, headers={"authorization": f"Bearer {KEY}"}) as socket:
            assert await socket.receive_json() == {"type": "session.created"}
    head = provider.heads[0]
    assert dict(head.query) == {"model": "gpt-realtime-2", "intent": "transcription"}
    assert head.headers["authorization"] == "Bearer sk-operator"
    assert KEY not in str(head.headers)


async def test_pages_of_other_sites_are_refused(gateway_server: Start, provider: Provider) -> None:
    """A browser lets any page open a WebSocket to loopback; its `Origin` gives it away."""
    gateway = await started(gateway_server, provider)
    async with aiohttp.ClientSession() as session:
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            await session.ws_connect(
                f"{gateway.url}/v1/realtime", headers={"origin": "https://evil.example"}
            )
    assert refused.value.status == 403
    assert not provider.heads


async def test_either_side_may_vanish(gateway_server: Start, provider: Provider) -> None:
    """The other connection is closed, nothing stays in flight, and a stop ends what is open."""
    gateway = await started(gateway_server, provider)
    in_flight = gateway.app.runtime.metrics.render
    async with aiohttp.ClientSession() as session:
        socket = await session.ws_connect(f"{gateway.url}/v1/realtime?model=m")
        await socket.receive_json()
        assert b"gateway_requests_in_flight 1.0" in in_flight()
        socket._response.connection.transport.abort()  # type: ignore[union-attr]
        async with asyncio.timeout(120):
            while b"gateway_requests_in_flight 0.0" not in in_flight():  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        socket = await session.ws_connect(f"{gateway.url}/v1/realtime?model=m")
        await socket.receive_json()
        await asyncio.to_thread(gateway.stop)
        async with asyncio.timeout(120):
            assert (await socket.receive()).type is aiohttp.WSMsgType.CLOSED


async def test_a_key_has_the_models_of_its_rights(
    gateway_server: Start, provider: Provider
) -> None:
    """A session that is named by its id, and so may be another tenant's, is not entered, either."""
    rights = {"t": {"models": ["small-*"]}}
    auth = {"gateway_keys": {"t": KEY}, "rights": rights}
    upstream = {"api_base": provider.url, "api_key": "sk-operator"}
    gateway = await started(gateway_server, provider, auth=auth, default_upstream=upstream)
    headers = {"authorization": f"Bearer {KEY}"}
    async with aiohttp.ClientSession() as session:
        for query in ("model=large", "", "model=small-1&call_id=rtc_1"):
            with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
                await session.ws_connect(f"{gateway.url}/v1/realtime?{query}", headers=headers)
            assert refused.value.status == 403, query
        assert provider.heads == []
        url = f"{gateway.url}/v1/realtime?model=small-1"
        async with session.ws_connect(url, headers=headers) as socket:
            await socket.receive_json()
