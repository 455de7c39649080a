"""One SQLite database, in a file or in memory: one writer thread and a few reader threads,
shared by every store in it; its tables are those of `schema.sql`, applied in order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, closing, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from threading import Lock, Thread
from typing import Any, NamedTuple

import apsw

from gateway.config.storage import StorageSettings
from gateway.errors import in_words
from gateway.observability.logging import get_logger
from gateway.stores.protocols import (
    SchemaMismatch,
    StoreClosed,
    StoreDamaged,
    StoreOverloaded,
    StoreUnavailable,
)
from gateway.stores.sql.migrations import Migration, migrations, say_migrated
from gateway.stores.sqlite.connection import ConnectionHook, open_all
from gateway.stores.sqlite.copies import copy_file
from gateway.stores.sqlite.damage import THOROUGH, set_aside
from gateway.stores.sqlite.files import FileIdentity, locked, translate
from gateway.tasks import on_disk
from gateway.values import T

# Every change a file needs, in order.
MIGRATIONS = migrations("gateway.stores.sqlite")

_APPLIED = "INSERT INTO migrations (name, applied_at) VALUES (?, unixepoch('subsec'))"


def migrate(
    connection: apsw.Connection, migrations: Sequence[Migration], settings: StorageSettings
) -> None:
    """Apply the missing changes, all or none; a file that had some is copied before. Raises:
    SchemaMismatch when the file has a change that this version does not know; StoreFull when the
    disk lacks room for the copy."""
    path = settings.path
    connection.execute(
        "CREATE TABLE IF NOT EXISTS migrations (name TEXT PRIMARY KEY, applied_at REAL NOT NULL)"
    )
    # Others that open the file wait here for as long as the copy and the changes take.
    with locked(Path(path).parent):
        applied = applied_to(connection)
        if unknown := applied - {migration.name for migration in migrations}:
            raise SchemaMismatch(
                f"{path!r} was written by a newer version of the gateway (it has "
                f"{', '.join(sorted(unknown))}); start that version, or use another file"
            )
        missing = {each.name: each.sql for each in migrations if each.name not in applied}
        # A file that lacks nothing is opened while another process holds the write lock.
        if not missing:
            return
        copy = ""
        with connection:
            # Takes the write lock, and so the copy is what the changes begin with.
            connection.executemany(_APPLIED, [(name,) for name in missing])
            if applied and settings.copy_before_changes:
                copy = f"{path}.before-{len(migrations)}"
                with closing(apsw.Connection(path, flags=apsw.SQLITE_OPEN_READONLY)) as source:
                    copy_file(source, copy)
            connection.execute(";\n".join(missing.values()))
    if applied:
        say_migrated(path, list(missing), len(applied), copy=copy)


def applied_to(connection: apsw.Connection) -> set[str]:
    """The names of the changes that the file has."""
    return {name for (name,) in connection.execute("SELECT name FROM migrations")}


class Database:
    """An open database. Made by `Database.open`, used on the event loop that opened it."""

    def __init__(
        self,
        settings: StorageSettings,
        migrations: Sequence[Migration],
        hooks: Sequence[ConnectionHook],
    ):
        self.settings = settings
        # Run on the writing connection when the file is another one than before, in a transaction,
        # before anything else is read from it or written to it.
        self.after_reopening: list[Work] = []

        self._migrations = migrations
        self._hooks = hooks
        self._closing: asyncio.Future[None] | None = None
        self._reopening = asyncio.Lock()
        self._sound = ""  # the last doubt about the file that a check did not confirm

    def _start(self, connections: Sequence[apsw.Connection]) -> None:
        loop = asyncio.get_running_loop()
        settings = self.settings
        writer, *others = connections
        self._files = FileIdentity(settings, writer, self._sound)
        self._writes = JobQueue(loop, limit=settings.queue_limit, name="writes")
        self._reads = JobQueue(loop, limit=settings.queue_limit, name="reads")
        # In memory SQLite locks out readers during a write, and the other way round. Threads that
        # take turns never meet that lock, so no request fails or waits for SQLite's next attempt.
        turn = Lock() if settings.in_memory else nullcontext()
        self._writer = Writer(writer, self._writes, self._files, turn=turn)
        self._readers = readers(others, self._reads, self._files.translated, turn=turn)
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
        database._start(await on_disk(_open, settings, migrations, hooks))
        return database

    async def reopen(self) -> str | None:
        """Close the connections and open the file again; a damaged file is replaced by a new
        one. Returns the name under which the damaged file is kept, if there was one. Meanwhile,
        and after an error, every operation raises StoreUnavailable. A database in memory loses
        its content. Raises: StoreDamaged while another program writes to the file; and other
        StoreErrors."""
        async with self._reopening:
            if self._closing is not None:
                raise StoreClosed("the store is closed")
            self._refuse(StoreUnavailable(f"{self.settings.path!r} is being opened again"))
            # The old connections first: the new ones must not share their memory-mapped index.
            await asyncio.to_thread(self._stop)
            await on_disk(self._files.remove_log)
            if not await on_disk(self._files.is_quiet):
                raise StoreDamaged(f"{self.settings.path!r} {self._files.doubt}: it is checked")
            kept = await on_disk(set_aside, self.settings.path, THOROUGH)
            if kept:
                self._sound = ""
            else:
                self._sound = self._files.doubt
            how = (self.settings, self._migrations, self._hooks, self.after_reopening)
            self._start(await on_disk(_open, *how))
            return kept

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
        await self.write(_touch)
        await self.read(_touch)

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
                migrate(connection, migrations, settings)
        for work in first:
            with opened[0]:
                work(opened[0])
    except BaseException as error:
        for connection in opened:
            connection.close()
        if isinstance(error, OSError):
            raise StoreUnavailable(
                f"{settings.path!r} cannot be opened ({in_words(error)})"
            ) from error
        if isinstance(error, apsw.Error):
            raise translate(error, settings.path) from error
        raise
    return opened


def _touch(connection: apsw.Connection) -> Any:
    return connection.execute("SELECT count(*) FROM migrations").get


# More jobs would only delay the first: the transaction's fixed cost is already spread thin.
MAX_GROUP = 32

# 16 MB of write-ahead log, four times SQLite's default: pages that many commits change are copied
# into the file once instead of four times, which saves a tenth of a commit's CPU (measured).
CHECKPOINT_PAGES = 4000

_log = get_logger(__name__)

Work = Callable[[apsw.Connection], Any]


class Job(NamedTuple):
    """A function of the connection, and the future that gets its result."""

    work: Work  # runs on the writer's connection; may run twice
    future: asyncio.Future[Any]  # gets the result, or the error


class JobResult(NamedTuple):
    """The end of a job."""

    future: asyncio.Future[Any]  # waits for it
    value: Any  # what the job returned; None after an error
    error: BaseException | None  # None when the job succeeded


class JobQueue:
    """A bounded queue from one event loop to one or more threads. `submit` and the results belong
    to the loop, `jobs` to the threads: a thread that takes None from it stops. `refusal`: raised
    instead of accepting more work."""

    def __init__(self, loop: asyncio.AbstractEventLoop, *, limit: int, name: str):
        self.jobs: SimpleQueue[Job | None] = SimpleQueue()
        self.refusal: StoreUnavailable | None = None
        self._loop = loop
        self._limit = limit
        self._name = name
        self._waiting = 0

    def submit(self, work: Work) -> asyncio.Future[Any]:
        """Accept `work`; returns the future of its result. Raises: StoreOverloaded, `refusal`."""
        if self.refusal is not None:
            raise self.refusal
        if self._waiting >= self._limit:
            raise StoreOverloaded(
                f"{self._waiting} {self._name} are waiting for the store (storage.queue_limit)"
            )
        self._waiting += 1
        future = self._loop.create_future()
        self.jobs.put(Job(work, future))
        return future

    def answer(self, results: Sequence[JobResult]) -> None:
        """Deliver results to the loop in one call. Called by the threads."""
        # When the loop is closed, nothing waits for the results any more.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._deliver, results)

    def _deliver(self, results: Sequence[JobResult]) -> None:
        self._waiting -= len(results)
        for future, value, error in results:
            if future.done():  # the caller was cancelled; the work was done nevertheless
                continue
            if error is None:
                future.set_result(value)
            else:
                future.set_exception(error)


class _TransactionLost(Exception):
    """SQLite rolled back the whole transaction on one job's error (disk full, I/O error)."""


@dataclass(eq=False)
class Writer:
    """Runs jobs on its connection, in order, each entirely or not at all.

    Jobs that wait at the same time share a transaction. Each has its own savepoint, so that a
    failing job does not affect the others. A job's function may run a second time when the shared
    transaction is lost. Results are delivered after the commit and before a checkpoint, so that
    no caller waits for the checkpoint. `turn` is held during each transaction. `files`: SQLite
    goes on writing into a file that was deleted, where nobody will ever find it, or over one that
    somebody else writes to. Into such a file no page is moved from the log."""

    connection: apsw.Connection  # used by the writer's thread alone
    queue: JobQueue  # jobs that wait
    # notices that the file was deleted or replaced: SQLite goes on writing into a file that nobody
    # will find. Into such a file no page is moved from the log.
    files: FileIdentity
    turn: AbstractContextManager[Any]  # held during each transaction
    # pages in the write-ahead log after the last commit
    _log_pages: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self.thread = Thread(target=self._run, name="store-writer", daemon=True)
        self._checkpoint_at = CHECKPOINT_PAGES
        self.connection.set_wal_hook(self._on_commit)

    def _run(self) -> None:
        jobs, more = self._take()
        while jobs or more:
            if jobs:
                with self.turn:
                    try:
                        results = self._perform(jobs)
                    except Exception as error:  # a caller would wait for a dead thread for ever
                        results = [self._failed(job, error) for job in jobs]
                if lost := self.files.lost():
                    results = [JobResult(each.future, None, lost) for each in results]
                self.queue.answer(results)
                del jobs, results  # not kept during the wait for the next job, which may be long
                if lost:
                    self._log_pages = 0
            self._checkpoint_if_due()
            jobs = []
            if more:
                jobs, more = self._take()
        if self.files.doubt:
            self.connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        self.connection.close()

    def _take(self) -> tuple[list[Job], bool]:
        """The jobs of one transaction, and whether there may be more."""
        waiting = self.queue.jobs
        jobs: list[Job] = []
        while (job := waiting.get()) is not None:
            jobs.append(job)
            if len(jobs) == MAX_GROUP or waiting.empty():
                return jobs, True
        return jobs, False

    def _perform(self, jobs: Sequence[Job]) -> list[JobResult]:
        self._roll_back()  # does nothing unless an earlier rollback failed
        try:
            self.connection.execute("BEGIN IMMEDIATE")
        except apsw.Error as error:
            return [self._failed(job, error) for job in jobs]
        if len(jobs) == 1:
            try:
                value = jobs[0].work(self.connection)
                self.connection.execute("COMMIT")
            except Exception as error:
                self._roll_back()
                return [self._failed(jobs[0], error)]
            return [JobResult(jobs[0].future, value, None)]
        try:
            return self._finish_together(jobs)
        except (_TransactionLost, apsw.Error):
            self._roll_back()
            return [result for job in jobs for result in self._perform([job])]

    def _finish_together(self, jobs: Sequence[Job]) -> list[JobResult]:
        execute = self.connection.execute
        results = []
        for job in jobs:
            execute("SAVEPOINT job")
            try:
                results.append(JobResult(job.future, job.work(self.connection), None))
            except Exception as error:
                if not self.connection.in_transaction:
                    raise _TransactionLost from error
                execute("ROLLBACK TO job")
                results.append(self._failed(job, error))
            execute("RELEASE job")
        execute("COMMIT")
        return results

    def _failed(self, job: Job, error: BaseException) -> JobResult:
        return JobResult(job.future, None, self.files.translated(error))

    def _roll_back(self) -> None:
        if self.connection.in_transaction:
            try:
                self.connection.execute("ROLLBACK")
            except apsw.Error as error:
                _log.warning(
                    "rollback of a transaction failed", path=self.files.path, error=str(error)
                )

    def _on_commit(self, _connection: apsw.Connection, _schema: str, pages: int) -> int:
        self._log_pages = pages
        return apsw.SQLITE_OK

    def _checkpoint_if_due(self) -> None:
        if self._log_pages < self._checkpoint_at:
            return
        try:
            pages, moved = self.connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
        except apsw.Error as error:
            _log.warning(
                "checkpoint of the database failed", path=self.files.path, error=str(error)
            )
            pages = self._log_pages
            moved = 0
        # A reader that still needs old pages stops the copying; retry when the log has grown.
        if pages == moved:
            self._checkpoint_at = CHECKPOINT_PAGES
        else:
            self._checkpoint_at = pages + CHECKPOINT_PAGES
        self._log_pages = 0


def readers(
    connections: Sequence[apsw.Connection],
    queue: JobQueue,
    translated: Callable[[BaseException], BaseException],
    turn: AbstractContextManager[Any],
) -> list[Thread]:
    """Threads that run jobs as they come, each on its connection. `turn` is held during each."""

    def run(connection: apsw.Connection) -> None:
        while (job := queue.jobs.get()) is not None:
            try:
                with turn:
                    result = JobResult(job.future, job.work(connection), None)
            except Exception as error:
                result = JobResult(job.future, None, translated(error))
            queue.answer((result,))
            del job, result
        connection.close()

    return [
        Thread(target=run, args=(connection,), name=f"store-reader-{n}", daemon=True)
        for n, connection in enumerate(connections)
    ]
