"""Signals between gateways with NOTIFY and LISTEN."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import asyncpg
import orjson
import structlog

from gateway.stores.postgres.connection import connect
from gateway.stores.postgres.database import CHANNEL, Database
from gateway.stores.protocols import RESYNC, OnSignal, StoreError

# A pooler lets a connection listen, and passes nothing on: after so long that is said.
_HEARD_S = 10.0
_CHECK_S = 30.0
_ANSWER_S = 5.0
"""A connection that is silent is asked for a sign of life this often, and given so long for it."""

_OWN = "own"  # the kind of a signal that only its sender waits for


class PostgresSignals:
    """`Signals` over a Database, on a connection of their own that bypasses a pooler."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._said = False
        self._log = structlog.get_logger("gateway.store")

    async def send(self, kind: str, **ids: str) -> None:
        await self._database.notify(kind, **ids)

    async def follow(self, on_signal: OnSignal) -> None:
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
        own, heard = self._database.holder, asyncio.Event()

        def received(_connection: object, _pid: int, _channel: str, payload: object) -> None:
            heard.set()
            signal = orjson.loads(str(payload))
            if signal.pop("from") != own:
                on_signal(signal.pop("kind"), signal)

        lost = asyncio.Event()
        connection.add_termination_listener(lambda _: lost.set())
        await connection.add_listener(CHANNEL, received)
        on_signal(RESYNC, {})
        await self._expect(heard, lost)
        while not lost.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(lost.wait(), _CHECK_S)
                return
            await connection.fetchval("SELECT 1", timeout=_ANSWER_S)

    async def _expect(self, heard: asyncio.Event, lost: asyncio.Event) -> None:
        """Say once that no signal arrives here, not even an own one."""
        with suppress(StoreError):
            await self._database.notify(_OWN)
            # Not `wait_for`, which before Python 3.12 may lose a cancellation that comes with it.
            with suppress(TimeoutError):
                async with asyncio.timeout(_HEARD_S):
                    await heard.wait()
            if not (heard.is_set() or lost.is_set() or self._said):
                self._said = True
                self._log.warning(
                    "no signals of other gateways arrive, changes are seen seconds later: behind a "
                    "pooler set storage.listen_url to the database itself"
                )
