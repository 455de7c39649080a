"""One SQLite file: one writer thread, a few readers, shared by every store in it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import apsw

from gateway.stores.base import StoreClosed, StoreUnavailable
from gateway.stores.settings import StorageSettings
from gateway.stores.sqlite.connection import (
    ConnectionHook,
    open_reader,
    open_writer,
    translate,
)
from gateway.stores.sqlite.jobs import JobQueue
from gateway.stores.sqlite.migrations import Migration, migrate
from gateway.stores.sqlite.readers import Readers
from gateway.stores.sqlite.schema import CONNECTION_HOOKS, MIGRATIONS
from gateway.stores.sqlite.writer import Writer

T = TypeVar("T")


class Database:
    """The file, open. Made by `Database.open`, used on the loop that opened it."""

    def __init__(
        self, settings: StorageSettings, writer: apsw.Connection, readers: Sequence[apsw.Connection]
    ) -> None:
        loop = asyncio.get_running_loop()
        self._settings = settings
        self._identity = _identity(settings.path)
        self._writes = JobQueue(loop, limit=settings.queue_limit, name="writes")
        self._reads = JobQueue(loop, limit=settings.queue_limit, name="reads")
        self._writer = Writer(writer, self._writes, settings.path)
        self._readers = Readers(readers, self._reads, settings.path)
        self._closing: asyncio.Future[None] | None = None
        self._writer.start()
        self._readers.start()

    @classmethod
    async def open(
        cls,
        settings: StorageSettings,
        *,
        migrations: Sequence[Migration] = MIGRATIONS,
        hooks: Sequence[ConnectionHook] = CONNECTION_HOOKS,
    ) -> Database:
        """Open the file at `settings.path`, making or migrating it as needed.

        `hooks` run on every connection, the writer's before the migrations.

        Raises: StoreError when the file cannot be used; ValueError for `:memory:`, which no
        second connection could see.
        """
        if settings.in_memory:
            raise ValueError("path: a database needs a file; the memory store has none")
        writer, readers = await asyncio.to_thread(_open, settings, migrations, hooks)
        return cls(settings, writer, readers)

    async def write(self, work: Callable[[apsw.Connection], T]) -> T:
        """Run `work` on the writer thread, inside a transaction, and return its result once
        that is committed.

        All that `work` did is undone when it raises. It must not begin or end transactions, and
        may be run again after being undone. Cancelling the caller does not stop it.

        Raises: StoreError, and whatever else `work` raises.
        """
        return await self._writes.submit(work)  # type: ignore[no-any-return]

    async def read(self, work: Callable[[apsw.Connection], T]) -> T:
        """Run `work` on a reader thread; it sees everything committed before.

        Each statement sees the data of its own moment; `one_view(work)` gives all of them the same.

        Raises: StoreError, and whatever else `work` raises.
        """
        return await self._reads.submit(work)  # type: ignore[no-any-return]

    @property
    def store_content(self) -> bool:
        """Whether texts are to be kept, or only their lengths and digests."""
        return self._settings.store_content

    @property
    def reader_threads(self) -> int:
        """How many reads run at once."""
        return len(self._readers)

    @property
    def waiting_writes(self) -> int:
        """Writes accepted and not yet committed."""
        return self._writes.waiting

    async def ping(self) -> None:
        """Return when the file is there and answers. Raises: StoreError."""
        if not self._writer.alive:
            raise StoreClosed("the store's writer has stopped")
        # SQLite goes on writing into a file that was deleted under it; nobody would ever read it.
        if await asyncio.to_thread(_identity, self._settings.path) != self._identity:
            raise StoreUnavailable(f"{self._settings.path!r} was deleted or replaced")
        await self.read(_touch)

    async def close(self) -> None:
        """Commit what was accepted, then close the file. Calling it again waits for the same."""
        if self._closing is None:
            self._reads.refuse()
            self._writes.refuse()
            self._closing = asyncio.ensure_future(asyncio.to_thread(self._close))
        await asyncio.shield(self._closing)

    def _close(self) -> None:
        # The writer goes last: the last connection moves the log into the file and removes it.
        self._reads.stop(len(self._readers))
        self._readers.join()
        self._writes.stop(1)
        self._writer.join()


def _open(
    settings: StorageSettings, migrations: Sequence[Migration], hooks: Sequence[ConnectionHook]
) -> tuple[apsw.Connection, list[apsw.Connection]]:
    opened: list[apsw.Connection] = []
    try:
        opened.append(open_writer(settings, hooks))
        migrate(opened[0], migrations, settings.path)
        opened.extend(open_reader(settings, hooks) for _ in range(settings.reader_threads))
    except BaseException as error:
        for connection in opened:
            connection.close()
        if isinstance(error, OSError):
            raise StoreUnavailable(f"{settings.path!r} cannot be opened ({error})") from error
        if isinstance(error, apsw.Error):
            raise translate(error, settings.path) from error
        raise
    return opened[0], opened[1:]


def _identity(path: str) -> tuple[int, int] | None:
    try:
        stat = os.stat(path)
    except OSError:
        return None
    return stat.st_dev, stat.st_ino


def _touch(connection: apsw.Connection) -> Any:
    return connection.execute("SELECT count(*) FROM migrations").get
