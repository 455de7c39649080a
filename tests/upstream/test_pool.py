"""The connections of the native lane: how many, how long, and to which address."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from yarl import URL

from gateway.errors import UpstreamUnreachable
from gateway.upstream.connections import Origin, Pool, origin_of
from steering_gateway_testing.loopback import listening


class Listener:
    """A server that keeps its connections until the clients close them."""

    def __init__(self) -> None:
        self.left = asyncio.Event()
        self.url = URL()
        self.serving: list[tuple[asyncio.Task[None] | None, asyncio.StreamWriter]] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.serving.append((asyncio.current_task(), writer))
        await reader.read()
        self.left.set()
        writer.close()
        await writer.wait_closed()


@asynccontextmanager
async def a_listener() -> AsyncIterator[Listener]:
    there = Listener()
    async with listening(there.serve) as port:
        there.url = URL(f"http://127.0.0.1:{port}")
        try:
            yield there
        finally:
            for task, writer in there.serving:
                writer.transport.abort()
                assert task is not None
                await asyncio.wait([task])


async def test_an_idle_connection_is_closed_after_its_time() -> None:
    """The server sees its end, although no request comes that would look at it."""
    async with a_listener() as there:
        pool = Pool(limit=0, connect_s=60, keepalive_s=0.1)
        connection = await pool.connect(Origin(there.url))
        connection.release(reusable=True)
        async with asyncio.timeout(120):
            await there.left.wait()


async def test_a_pool_without_idle_connections_opens_one_each_time() -> None:
    """Also when the next request comes at once."""
    async with a_listener() as there:
        pool = Pool(limit=0, connect_s=60, keepalive_s=0)
        connections = set()
        for _ in range(3):
            connections.add(connection := await pool.connect(Origin(there.url)))
            connection.release(reusable=True)
        assert len(connections) == 3


async def test_a_connection_beyond_the_limit_is_waited_for() -> None:
    """It is given to the one that waits, whatever has become of it, and once."""
    async with a_listener() as there:
        pool = Pool(limit=1, connect_s=60, keepalive_s=60)
        first = await pool.connect(Origin(there.url))
        waiting = [asyncio.ensure_future(pool.connect(Origin(there.url))) for _ in range(2)]
        await asyncio.sleep(0.1)
        assert not any(each.done() for each in waiting)
        first.release(reusable=True)
        async with asyncio.timeout(120):
            assert await waiting[0] is first
        first.release(reusable=False)
        first.release(reusable=False)
        async with asyncio.timeout(120):
            second = await waiting[1]
        assert second is not first
        assert list(pool.in_use) == [second]
        third = asyncio.ensure_future(pool.connect(Origin(there.url)))
        await asyncio.sleep(0.1)
        assert not third.done()
        third.cancel()
        pool.close()


async def test_a_cancelled_wait_takes_no_room() -> None:
    """As a client that leaves while its request waits for a connection."""
    async with a_listener() as there:
        pool = Pool(limit=1, connect_s=60, keepalive_s=60)
        first = await pool.connect(Origin(there.url))
        waiting = asyncio.ensure_future(pool.connect(Origin(there.url)))
        await asyncio.sleep(0.1)
        waiting.cancel()
        first.release(reusable=True)
        async with asyncio.timeout(120):
            assert await pool.connect(Origin(there.url)) is first
        pool.close()


async def test_another_address_of_a_name_is_tried() -> None:
    """One address of a host may refuse while another one takes the connection."""
    async with a_listener() as there:
        pool = Pool(limit=1, connect_s=60, keepalive_s=60)
        port = there.url.port or 0
        refuses = await pool._look_up("127.0.0.2", port)
        pool._addresses["two.test", port] = refuses + await pool._look_up("127.0.0.1", port)
        for _ in range(2):
            connection = await pool.connect(Origin(URL(f"http://two.test:{port}")))
            connection.release(reusable=False)
        await asyncio.sleep(0)


async def test_a_connection_that_is_refused() -> None:
    """The message says what is wrong, and the room is given back."""
    async with a_listener() as there:
        pass
    pool = Pool(limit=1, connect_s=60, keepalive_s=60)
    for _ in range(2):
        with pytest.raises(UpstreamUnreachable, match="cannot be reached: Connection refused"):
            await pool.connect(Origin(there.url))


def test_the_proxy_of_a_url(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its login goes into a header; a proxy that is reached over TLS is not used."""
    monkeypatch.setenv("http_proxy", "http://u:p%40@127.0.0.1:3128")
    monkeypatch.setenv("https_proxy", "https://127.0.0.1:3129")
    monkeypatch.setenv("no_proxy", "direct.test")
    url = URL("http://other.test/v1")
    proxy = URL("http://127.0.0.1:3128")
    assert origin_of(url, proxied=True) == Origin(url.origin(), proxy, b"Basic dTpwQA==")
    for alone in ("https://other.test/v1", "http://direct.test/v1"):
        assert origin_of(URL(alone), proxied=True) == Origin(URL(alone).origin())
    assert origin_of(url, proxied=False) == Origin(url.origin())
