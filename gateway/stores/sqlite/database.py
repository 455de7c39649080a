"""One SQLite database, in a file or in memory: one writer thread and a few reader threads,
shared by every store in it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any, TypeVar

import apsw

from gateway.config.storage import StorageSettings
from gateway.stores.protocols import StoreClosed, StoreReplaced, StoreUnavailable
from gateway.stores.sql.tables import Migration
from gateway.stores.sqlite.connection import ConnectionHook, FileIdentity, open_all, translate
from gateway.stores.sqlite.schema import MIGRATIONS, migrate
from gateway.stores.sqlite.threads import JobQueue, Work, Writer, readers

T = TypeVar("T")


class Database:
    """An open database. Made by `Database.open`, used on the event loop that opened it."""

    def __init__(
        self,
        settings: StorageSettings,
        migrations: Sequence[Migration],
        hooks: Sequence[ConnectionHook],
    ) -> None:
        self.settings = settings
        self.after_reopening: list[Work] = []
        """Run on the writing connection when the file is another one than before, in a
        transaction, before anything else is read from it or written to it."""

        self._migrations = migrations
        self._hooks = hooks
        self._closing: asyncio.Future[None] | None = None
        self._reopening = asyncio.Lock()

    def _start(self, connections: Sequence[apsw.Connection]) -> None:
        loop, settings = asyncio.get_running_loop(), self.settings
        writer, *others = connections
        self._files = FileIdentity(settings)
        self._writes = JobQueue(loop, limit=settings.queue_limit, name="writes")
        self._reads = JobQueue(loop, limit=settings.queue_limit, name="reads")
        # In memory SQLite locks out readers during a write, and the other way round. Threads that
        # take turns never meet that lock, so no request fails or waits for SQLite's next attempt.
        turn = threading.Lock() if settings.in_memory else nullcontext()
        self._writer = Writer(writer, self._writes, settings.path, turn, self._files.is_current)
        self._readers = readers(others, self._reads, settings.path, turn)
        for thread in (self._writer.thread, *self._readers):
            thread.start()

    @classmethod
    async def open(
        cls,
        settings: StorageSettings,
        *,
        migrations: Sequence[Migration] = MIGRATIONS,
        hooks: Sequence[ConnectionHook] = (),
    ) -> Database:
        """Open the file at `settings.path`, creating or migrating it as needed. `hooks` run on
        every connection, on the writer's before the migrations. Raises: StoreError."""
        database = cls(settings, migrations, hooks)
        database._start(await asyncio.to_thread(_open, settings, migrations, hooks))
        return database

    async def reopen(self) -> None:
        """Close the connections and open the file again. Meanwhile, and after an error, every
        operation raises StoreUnavailable. Of a database in memory nothing is left."""
        async with self._reopening:
            if self._closing is not None:
                raise StoreClosed("the store is closed")
            self._refuse(StoreUnavailable(f"{self.settings.path!r} is being opened again"))
            # The old connections first: the new ones must not share their memory-mapped index.
            await asyncio.to_thread(self._stop)
            await asyncio.to_thread(self._files.remove_log)
            how = (self.settings, self._migrations, self._hooks, self.after_reopening)
            self._start(await asyncio.to_thread(_open, *how))

    async def write(self, work: Callable[[apsw.Connection], T]) -> T:
        """The result of `work` on the writer thread, inside a transaction, after the commit. It may
        run again after a rollback, and cancelling the caller does not stop it. Raises: StoreError,
        and whatever else `work` raises; then nothing of it stays."""
        return await self._writes.submit(work)  # type: ignore[no-any-return]

    async def read(self, work: Callable[[apsw.Connection], T]) -> T:
        """The result of `work` on a reader thread. Each statement sees the latest commit at its
        start. Raises: StoreError, and whatever else `work` raises."""
        return await self._reads.submit(work)  # type: ignore[no-any-return]

    @property
    def reader_threads(self) -> int:
        """Number of reads that run at once."""
        return len(self._readers)

    async def ping(self) -> None:
        """Return if the file is the one that was opened, and can be read and written."""
        if not self._writer.thread.is_alive():
            raise StoreClosed("the store's writer has stopped")
        if not await asyncio.to_thread(self._files.is_current):
            raise StoreReplaced(f"{self.settings.path!r} was deleted or replaced")
        await self.read(_touch)
        await self.write(_touch)

    async def close(self) -> None:
        """Commit what was accepted, then close. A second call waits for the first."""
        if self._closing is None:
            self._closing = asyncio.ensure_future(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        async with self._reopening:
            self._refuse(StoreClosed("the store is closed"))
            await asyncio.to_thread(self._stop)

    def _refuse(self, error: StoreUnavailable) -> None:
        self._reads.refusal = self._writes.refusal = error

    def _stop(self) -> None:
        # The writer stops last: the last connection moves the log into the file and removes it.
        for queue, threads in ((self._reads, self._readers), (self._writes, [self._writer.thread])):
            for _ in threads:
                queue.jobs.put(None)
            for thread in threads:
                thread.join()


def _open(
    settings: StorageSettings,
    migrations: Sequence[Migration],
    hooks: Sequence[ConnectionHook],
    first: Sequence[Work] = (),
) -> list[apsw.Connection]:
    """The connections of a database, that of the writer first, on which `first` is run."""
    opened: list[apsw.Connection] = []
    try:
        for connection in open_all(settings, hooks):
            opened.append(connection)
            if len(opened) == 1:
                migrate(connection, migrations, settings.path)
        for work in first:
            with opened[0]:
                work(opened[0])
    except BaseException as error:
        for connection in opened:
            connection.close()
        if isinstance(error, OSError):
            raise StoreUnavailable(f"{settings.path!r} cannot be opened ({error})") from error
        if isinstance(error, apsw.Error):
            raise translate(error, settings.path) from error
        raise
    return opened


def _touch(connection: apsw.Connection) -> Any:
    return connection.execute("SELECT count(*) FROM migrations").get
