"""Signals between gateways with NOTIFY and LISTEN."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import asyncpg
import orjson

from gateway.stores.postgres.connection import connect
from gateway.stores.postgres.database import CHANNEL, Database
from gateway.stores.protocols import StoreError
from gateway.stores.signals import RESYNC, OnSignal

_CHECK_S = 30.0
_ANSWER_S = 5.0
"""A connection that is silent is asked for a sign of life this often, and given so long for it."""


class PostgresSignals:
    """`Signals` over a Database, on a connection of their own that bypasses a pooler."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def send(self, kind: str, **ids: str) -> None:
        """See Signals."""
        await self._database.notify(kind, **ids)

    async def follow(self, on_signal: OnSignal) -> None:
        """See Signals."""
        settings = self._database.settings
        while True:
            with suppress(StoreError, asyncpg.PostgresError, asyncpg.InterfaceError, OSError):
                connection = await connect(settings, settings.listen_url)
                try:
                    await self._listen(connection, on_signal)
                finally:
                    with suppress(asyncpg.PostgresError, asyncpg.InterfaceError, OSError):
                        await connection.close(timeout=1)
            await asyncio.sleep(settings.probe_interval_s)

    async def _listen(self, connection: asyncpg.Connection, on_signal: OnSignal) -> None:
        """Until the connection is lost."""
        own = self._database.holder

        def received(_connection: object, _pid: int, _channel: str, payload: object) -> None:
            signal = orjson.loads(str(payload))
            if signal.pop("from") != own:
                on_signal(signal.pop("kind"), signal)

        lost = asyncio.Event()
        connection.add_termination_listener(lambda _: lost.set())
        await connection.add_listener(CHANNEL, received)
        on_signal(RESYNC, {})
        while not lost.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(lost.wait(), _CHECK_S)
                return
            await connection.fetchval("SELECT 1", timeout=_ANSWER_S)
