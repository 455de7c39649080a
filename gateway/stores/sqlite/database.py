"""One SQLite database, in a file or in memory: one writer thread and a few reader threads,
shared by every store in it."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any, TypeVar

import apsw

from gateway.config.storage import StorageSettings
from gateway.stores.protocols import StoreClosed, StoreUnavailable
from gateway.stores.sqlite.connection import (
    MEMORY_LIMIT_BYTES,
    ConnectionHook,
    open_all,
    translate,
)
from gateway.stores.sqlite.jobs import JobQueue
from gateway.stores.sqlite.migrations import Migration, migrate
from gateway.stores.sqlite.schema import MIGRATIONS
from gateway.stores.sqlite.threads import Readers, Writer

T = TypeVar("T")


class Database:
    """An open database. Made by `Database.open`, used on the event loop that opened it."""

    def __init__(
        self, settings: StorageSettings, writer: apsw.Connection, readers: Sequence[apsw.Connection]
    ) -> None:
        loop = asyncio.get_running_loop()
        self._settings = settings
        self._identity = _identity(settings)
        self._writes = JobQueue(loop, limit=settings.queue_limit, name="writes")
        self._reads = JobQueue(loop, limit=settings.queue_limit, name="reads")
        # In memory SQLite locks out readers during a write, and the other way round. Threads that
        # take turns never meet that lock, so no request fails or waits for SQLite's next attempt.
        turn = threading.Lock() if settings.in_memory else nullcontext()
        self._writer = Writer(writer, self._writes, settings.path, turn)
        self._readers = Readers(readers, self._reads, settings.path, turn)
        self._closing: asyncio.Future[None] | None = None
        self._writer.start()
        self._readers.start()

    @classmethod
    async def open(
        cls,
        settings: StorageSettings,
        *,
        migrations: Sequence[Migration] = MIGRATIONS,
        hooks: Sequence[ConnectionHook] = (),
    ) -> Database:
        """Open the file at `settings.path`, creating or migrating it as needed.

        `:memory:` is a new, empty database, which ends with `close`. `hooks` run on every
        connection, on the writer's before the migrations.

        Raises: StoreError when the file cannot be used.
        """
        writer, readers = await asyncio.to_thread(_open, settings, migrations, hooks)
        return cls(settings, writer, readers)

    async def write(self, work: Callable[[apsw.Connection], T]) -> T:
        """Run `work` on the writer thread, inside a transaction, and return its result after the
        commit.

        When `work` raises, everything it did is rolled back. It must not begin or end
        transactions, and may run again after a rollback. Cancelling the caller does not stop it.

        Raises: StoreError, and whatever else `work` raises.
        """
        return await self._writes.submit(work)  # type: ignore[no-any-return]

    async def read(self, work: Callable[[apsw.Connection], T]) -> T:
        """Run `work` on a reader thread; it sees everything committed before the call.

        Each statement sees the latest commit at its start; with `one_view(work)` all statements
        see the same data.

        Raises: StoreError, and whatever else `work` raises.
        """
        return await self._reads.submit(work)  # type: ignore[no-any-return]

    @property
    def store_content(self) -> bool:
        """Whether texts are stored, or only their lengths and digests."""
        return self._settings.store_content

    @property
    def reader_threads(self) -> int:
        """How many reads run at once."""
        return len(self._readers)

    @property
    def size_limit(self) -> int | None:
        """Most bytes the database can grow to, None for a file."""
        return MEMORY_LIMIT_BYTES if self._settings.in_memory else None

    async def ping(self) -> None:
        """Return when the database exists and answers a query. Raises: StoreError."""
        if not self._writer.alive:
            raise StoreClosed("the store's writer has stopped")
        # SQLite keeps writing into a file that was deleted; nobody would ever read it.
        if await asyncio.to_thread(_identity, self._settings) != self._identity:
            raise StoreUnavailable(f"{self._settings.path!r} was deleted or replaced")
        await self.read(_touch)

    async def close(self) -> None:
        """Commit what was accepted, then close. A second call waits for the first."""
        if self._closing is None:
            self._reads.refuse()
            self._writes.refuse()
            self._closing = asyncio.ensure_future(asyncio.to_thread(self._close))
        await asyncio.shield(self._closing)

    def _close(self) -> None:
        # The writer stops last: the last connection moves the log into the file and removes it.
        self._reads.stop(len(self._readers))
        self._readers.join()
        self._writes.stop(1)
        self._writer.join()


def _open(
    settings: StorageSettings, migrations: Sequence[Migration], hooks: Sequence[ConnectionHook]
) -> tuple[apsw.Connection, list[apsw.Connection]]:
    opened: list[apsw.Connection] = []
    try:
        for connection in open_all(settings, hooks):
            opened.append(connection)
            if len(opened) == 1:
                migrate(connection, migrations, settings.path)
    except BaseException as error:
        for connection in opened:
            connection.close()
        if isinstance(error, OSError):
            raise StoreUnavailable(f"{settings.path!r} cannot be opened ({error})") from error
        if isinstance(error, apsw.Error):
            raise translate(error, settings.path) from error
        raise
    return opened[0], opened[1:]


def _identity(settings: StorageSettings) -> tuple[int, int] | None:
    """Device and inode of the file; None when there is none."""
    if settings.in_memory:
        return None
    try:
        stat = os.stat(settings.path)
    except OSError:
        return None
    return stat.st_dev, stat.st_ino


def _touch(connection: apsw.Connection) -> Any:
    return connection.execute("SELECT count(*) FROM migrations").get
