"""One PostgreSQL database: a connection that writes in groups, a few for everything else, and one
that listens to the others on the database."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from secrets import token_hex
from typing import Any

import asyncpg
import orjson

from gateway.config.storage import StorageSettings
from gateway.features.postgres.connection import STATEMENT_S, Slot, connect, prepare
from gateway.features.postgres.writer import Writer
from gateway.observability.logging import get_logger
from gateway.stores.protocols import (
    RESYNC,
    OnSignal,
    StoreClosed,
    StoreError,
    StoreOverloaded,
    StoreUnavailable,
)
from gateway.stores.records import CallRecord
from gateway.values import T

_log = get_logger("gateway.store")

CHANNEL = "gateway"  # of the notifications between gateways
PATIENT_S = 60.0  # longest wait for a piece of work that may take its time
Work = Callable[[asyncpg.Connection], Awaitable[T]]

# An empty message in the server's log of changes finds a disk that is full.
_PING = """
SELECT current_setting('transaction_read_only') = 'on', (SELECT count(*) FROM gateway_migrations)
"""
_WRITE = "SELECT pg_logical_emit_message(true, 'gateway', '')"


class Database:
    """An open database. Made by `Database.open`, used on the event loop that opened it."""

    def __init__(self, settings: StorageSettings, *, vectors: bool):
        self.settings = settings
        # A random name of this process, for leases.
        self.holder = token_hex(8)

        self.identity = ""  # names the database: the same for every gateway that uses it
        self._vectors = vectors
        self._refusal: StoreUnavailable | None = None
        # Run in a transaction after the database was opened again: it may be an empty one.
        self.after_reopening: list[Work[None]] = []

        self._waiting = 0
        self._reopening = asyncio.Lock()
        self._start()

    def _start(self) -> None:
        self._free: asyncio.Queue[Slot] = asyncio.Queue()
        self._slots = [Slot(self.settings) for _ in range(self.settings.reader_threads)]
        for slot in self._slots:
            self._free.put_nowait(slot)
        self._writer = Writer(self.settings)

    @classmethod
    async def open(cls, settings: StorageSettings, *, vectors: bool = False) -> Database:
        """Connect to `settings.url` and migrate its schema. `vectors`: patterns are searched.
        Raises: StoreError."""
        database = cls(settings, vectors=vectors)
        database.identity = await prepare(settings, vectors=vectors)
        return database

    async def reopen(self) -> str | None:
        """Close the connections, check and migrate the database again. Raises: StoreError."""
        async with self._reopening:
            if isinstance(self._refusal, StoreClosed):
                raise StoreClosed("the store is closed")
            self._refusal = StoreUnavailable(f"{self.settings.place} is being opened again")
            await self._stop()
            self._start()
            await prepare(self.settings, vectors=self._vectors)

            async def work(connection: asyncpg.Connection) -> None:
                async with connection.transaction():
                    for first in self.after_reopening:
                        await first(connection)

            await self._slots[0].run(work)
            self._refusal = None
        return None

    async def commit(self, call: CallRecord) -> int:
        """Write one call, together with others that wait. Raises: StoreError."""
        if self._refusal is not None:
            raise self._refusal
        return await self._writer.commit(call)

    async def run(self, work: Work[T], *, limit_s: float = STATEMENT_S) -> T:
        """The result of `work` on a free connection, each of its statements for itself. Raises:
        StoreError, and whatever else `work` raises."""
        if self._refusal is not None:
            raise self._refusal
        if self._waiting >= self.settings.queue_limit:
            raise StoreOverloaded(
                f"{self._waiting} reads are waiting for the store (storage.queue_limit)"
            )
        self._waiting += 1
        try:
            free = self._free
            slot = await free.get()
            try:
                return await slot.run(work, limit_s)
            finally:
                free.put_nowait(slot)
        finally:
            self._waiting -= 1

    async def fetch(self, sql: str, *values: Any, limit_s: float = STATEMENT_S) -> list[Any]:
        """The rows that one statement gives. Raises: StoreError."""
        return await self.run(lambda connection: connection.fetch(sql, *values), limit_s=limit_s)

    async def notify(self, kind: str, **ids: str) -> None:
        """Tell the other gateways. Raises: StoreError."""
        payload = orjson.dumps({"kind": kind, "from": self.holder, **ids}).decode()
        await self.fetch("SELECT pg_notify($1, $2)", CHANNEL, payload)

    async def transact(self, work: Work[T], *, limit_s: float = STATEMENT_S, **options: Any) -> T:
        """The result of `work` inside a transaction; nothing of it stays when it raises."""

        async def within(connection: asyncpg.Connection) -> T:
            async with connection.transaction(**options):
                return await work(connection)

        return await self.run(within, limit_s=limit_s)

    async def view(self, work: Work[T]) -> T:
        """The result of `work`, whose statements all see the same data."""
        return await self.transact(work, isolation="repeatable_read", readonly=True)

    async def ping(self) -> None:
        """Return when the database can be read and written. Raises: StoreError."""

        async def work(connection: asyncpg.Connection) -> None:
            if (await connection.fetchrow(_PING))[0]:
                raise asyncpg.ReadOnlySQLTransactionError("it may be a standby server")
            await connection.execute(_WRITE)

        await self.run(work)

    async def close(self) -> None:
        """Commit what was accepted, then close. A second call does nothing."""
        closed = self._refusal = StoreClosed("the store is closed")
        async with self._reopening:
            self._refusal = closed
            await self._stop()

    async def _stop(self) -> None:
        await self._writer.close()
        await asyncio.wait([asyncio.ensure_future(slot.close()) for slot in self._slots])


# A pooler lets a connection listen, and passes nothing on: after so long that is said.
_HEARD_S = 10.0
# A connection that is silent is asked for a sign of life this often, and given so long for it.
_CHECK_S = 30.0
_ANSWER_S = 5.0

_OWN = "own"  # the kind of a signal that only its sender waits for


class PostgresSignals:
    """`Signals` over a Database, on a connection of their own that bypasses a pooler."""

    def __init__(self, database: Database):
        self._database = database
        self._said = False

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
        heard = asyncio.Event()

        def received(_connection: object, _pid: int, _channel: str, payload: object) -> None:
            heard.set()
            signal = orjson.loads(str(payload))
            if signal.pop("from") != self._database.holder:
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
                _log.warning(
                    "no signals of other gateways arrive, changes are seen seconds later: behind a "
                    "pooler set storage.listen_url to the database itself"
                )
