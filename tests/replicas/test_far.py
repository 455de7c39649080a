"""A gateway that starts far away from its database needs few answers of it, not much time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from urllib.parse import urlsplit

import pytest

from gateway.backends import open_stores
from gateway.config import settings_from_dict
from gateway.library.catalogue import starter_patterns
from gateway.runtime import Runtime
from steering_gateway_testing.loopback import listening
from steering_gateway_testing.postgres import PostgresServer
from steering_gateway_testing.store_conformance.sample_patterns import SIZE, drawn, pattern
from tests.postgres import new_database, shared_server

_READY = b"Z"
"""The message with which the server says that it waits. Source: PostgreSQL's protocol, version 3.
"""
_HEAD_BYTES = 5


class Far:
    """The way to a server: each piece of data takes `delay_s` in each direction.

    `waits`: how often the server has answered all that was asked of it and waited for more."""

    def __init__(self, server: PostgresServer, delay_s: float) -> None:
        self.waits = 0
        self._server = server
        self._delay_s = delay_s

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Carry one connection."""
        socket = f"{self._server.folder}/.s.PGSQL.{self._server.port}"
        there = await asyncio.open_unix_connection(socket)
        ways = [
            asyncio.ensure_future(self._carry(reader, there[1], counts=False)),
            asyncio.ensure_future(self._carry(there[0], writer, counts=True)),
        ]
        try:
            with suppress(asyncio.CancelledError):  # the test is over
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            there[1].close()
            writer.close()

    async def _carry(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, counts: bool
    ) -> None:
        loop, unread = asyncio.get_running_loop(), b""
        on_the_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

        async def arrive() -> None:
            while True:
                due, data = await on_the_way.get()
                await asyncio.sleep(due - loop.time())
                writer.write(data)

        arriving = asyncio.ensure_future(arrive())
        try:
            with suppress(OSError):
                while data := await reader.read(65536):
                    on_the_way.put_nowait((loop.time() + self._delay_s, data))
                    unread = self._counted(unread + data) if counts else b""
        finally:
            arriving.cancel()

    def _counted(self, data: bytes) -> bytes:
        """Count the whole messages; what is left of the last one."""
        while len(data) >= _HEAD_BYTES:
            size = 1 + int.from_bytes(data[1:_HEAD_BYTES], "big")
            if len(data) < size:
                break
            self.waits += data[:1] == _READY
            data = data[size:]
        return data


@asynccontextmanager
async def far(server: PostgresServer, url: str, delay_s: float) -> AsyncIterator[tuple[Far, str]]:
    """The way to a database, and its URL there."""
    way = Far(server, delay_s)
    async with listening(way.serve) as port:
        yield way, f"postgresql://postgres@127.0.0.1:{port}{urlsplit(url).path}?sslmode=disable"


_ONE_WAY_S = 0.04
_MOST_OF_A_FIRST_START = 130
"""Waits for the database: the tables, 14 partitions, the starter patterns, and reads; 114 when this
was written, 1,120 and no end when each pattern had statements of its own."""


@pytest.mark.slow
async def test_a_first_start_far_away() -> None:
    """The empty database gets its tables and the starter patterns at the first attempt."""
    server, url = shared_server(), new_database()
    async with far(server, url, _ONE_WAY_S) as (way, there):
        # No second attempt: what is not done at the first one ends the start.
        runtime = Runtime(settings_from_dict({"storage": {"url": there, "start_wait_s": 0}}))
        opened = await runtime.start()
        try:
            assert opened.patterns is not None
            assert await opened.patterns.library.store.count() == len(starter_patterns())
            assert way.waits <= _MOST_OF_A_FIRST_START
        finally:
            await runtime.aclose()


async def test_many_patterns_take_as_many_statements_as_few() -> None:
    """Whether they are new, replaced, unchanged or embedded again."""
    server, url = shared_server(), new_database()
    taken = []
    async with far(server, url, 0.0) as (way, there):
        stores = await open_stores(
            settings_from_dict({"storage": {"url": there}}).storage, vectors=True
        )
        store = stores.patterns
        await store.open_space("test", SIZE)
        for count in (2, 2, 60):
            await store.remove_unfit()
            before, marks = way.waits, ("new", "new", "other")
            for mark in marks:
                entries = [
                    (pattern(f"{mark} {count} {n}", pattern_id=f"{count}-{n}"), drawn(n))
                    for n in range(count)
                ]
                await store.add(entries)
                await store.set_vectors(entries)
            taken.append(way.waits - before)
        await stores.close()
    _, few, many = taken  # the first ones prepare the statements
    assert many <= few
