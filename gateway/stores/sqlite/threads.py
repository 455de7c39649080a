"""The threads that own the connections: one that writes, a few that read."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import apsw
import structlog

from gateway.stores.protocols import StoreReplaced
from gateway.stores.sqlite.connection import translate
from gateway.stores.sqlite.jobs import Job, JobQueue, JobResult

# More jobs would only delay the first: the transaction's fixed cost is already spread thin.
MAX_GROUP = 32

# 16 MB of write-ahead log, four times SQLite's default: pages that many commits change are copied
# into the file once instead of four times, which saves a tenth of a commit's CPU (measured).
CHECKPOINT_PAGES = 4000

_log = structlog.get_logger(__name__)


class _TransactionLost(Exception):
    """SQLite rolled back the whole transaction on one job's error (disk full, I/O error)."""


class Writer:
    """Runs jobs on its connection, in order, each entirely or not at all.

    Jobs that wait at the same time share a transaction. Each has its own savepoint, so that a
    failing job does not affect the others. A job's function may run a second time when the shared
    transaction is lost. Results are delivered after the commit and before a checkpoint, so that
    no caller waits for the checkpoint. `turn` is held during each transaction. `is_current` says
    whether the file is still the one that was opened: SQLite goes on writing into a file that was
    deleted, where nobody will ever find it.
    """

    def __init__(
        self,
        connection: apsw.Connection,
        queue: JobQueue,
        path: str,
        turn: AbstractContextManager[Any],
        is_current: Callable[[], bool],
    ) -> None:
        self._connection = connection
        self._queue = queue
        self._path = path
        self._turn = turn
        self._is_current = is_current
        self._log_pages = 0
        self._checkpoint_at = CHECKPOINT_PAGES
        connection.set_wal_hook(self._on_commit)
        self._thread = threading.Thread(target=self._run, name="store-writer", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether the thread is running."""
        return self._thread.is_alive()

    def join(self) -> None:
        """Wait for the thread to end; blocks."""
        self._thread.join()

    def _run(self) -> None:
        jobs, more = self._take()
        while jobs or more:
            if jobs:
                with self._turn:
                    results = self._try_to_perform(jobs)
                self._queue.answer(results if self._is_current() else self._lost(results))
                del jobs, results  # not kept during the wait for the next job, which may be long
            self._checkpoint_if_due()
            jobs, more = self._take() if more else ([], False)
        self._connection.close()

    def _take(self) -> tuple[list[Job], bool]:
        waiting = self._queue.jobs
        jobs: list[Job] = []
        job = waiting.get()
        while job is not None:
            jobs.append(job)
            if len(jobs) == MAX_GROUP or waiting.empty():
                return jobs, True
            job = waiting.get()
        return jobs, False

    def _try_to_perform(self, jobs: Sequence[Job]) -> list[JobResult]:
        """Answer every job, whatever happens: a caller would wait for a dead thread for ever."""
        try:
            return self._perform(jobs)
        except Exception as error:
            return [self._failed(job, error) for job in jobs]

    def _perform(self, jobs: Sequence[Job]) -> list[JobResult]:
        self._roll_back()  # does nothing unless an earlier rollback failed
        try:
            self._connection.execute("BEGIN IMMEDIATE")
        except apsw.Error as error:
            return [self._failed(job, error) for job in jobs]
        if len(jobs) == 1:
            return [self._finish_alone(jobs[0])]
        try:
            return self._finish_together(jobs)
        except (_TransactionLost, apsw.Error):
            self._roll_back()
            return [outcome for job in jobs for outcome in self._perform([job])]

    def _finish_alone(self, job: Job) -> JobResult:
        try:
            value = job.work(self._connection)
            self._connection.execute("COMMIT")
        except Exception as error:
            self._roll_back()
            return self._failed(job, error)
        return JobResult(job.future, value, None)

    def _finish_together(self, jobs: Sequence[Job]) -> list[JobResult]:
        execute = self._connection.execute
        outcomes = []
        for job in jobs:
            execute("SAVEPOINT job")
            try:
                outcomes.append(JobResult(job.future, job.work(self._connection), None))
            except Exception as error:
                if not self._connection.in_transaction:
                    raise _TransactionLost from error
                execute("ROLLBACK TO job")
                outcomes.append(self._failed(job, error))
            execute("RELEASE job")
        execute("COMMIT")
        return outcomes

    def _lost(self, results: Sequence[JobResult]) -> list[JobResult]:
        lost = StoreReplaced(f"{self._path!r} was deleted or replaced")
        return [JobResult(each.future, None, each.error or lost) for each in results]

    def _failed(self, job: Job, error: BaseException) -> JobResult:
        return JobResult(job.future, None, translate(error, self._path))

    def _roll_back(self) -> None:
        if self._connection.in_transaction:
            try:
                self._connection.execute("ROLLBACK")
            except apsw.Error as error:
                _log.warning("rollback of a transaction failed", path=self._path, error=str(error))

    def _on_commit(self, _connection: apsw.Connection, _schema: str, pages: int) -> int:
        self._log_pages = pages
        return apsw.SQLITE_OK

    def _checkpoint_if_due(self) -> None:
        if self._log_pages < self._checkpoint_at:
            return
        try:
            pages, moved = self._connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
        except apsw.Error as error:
            _log.warning("checkpoint of the database failed", path=self._path, error=str(error))
            pages, moved = self._log_pages, 0
        # A reader that still needs old pages stops the copying; retry when the log has grown.
        self._checkpoint_at = CHECKPOINT_PAGES if pages == moved else pages + CHECKPOINT_PAGES
        self._log_pages = 0


class Readers:
    """Runs jobs as they come, on whichever connection is free. `turn` is held during each."""

    def __init__(
        self,
        connections: Sequence[apsw.Connection],
        queue: JobQueue,
        path: str,
        turn: AbstractContextManager[Any],
    ) -> None:
        self._queue = queue
        self._path = path
        self._turn = turn
        self._threads = [
            threading.Thread(target=self._run, args=(c,), name=f"store-reader-{n}", daemon=True)
            for n, c in enumerate(connections)
        ]

    def __len__(self) -> int:
        return len(self._threads)

    def start(self) -> None:
        """Start the threads."""
        for thread in self._threads:
            thread.start()

    def join(self) -> None:
        """Wait for the threads to end; blocks."""
        for thread in self._threads:
            thread.join()

    def _run(self, connection: apsw.Connection) -> None:
        while (job := self._queue.jobs.get()) is not None:
            try:
                with self._turn:
                    outcome = JobResult(job.future, job.work(connection), None)
            except Exception as error:
                outcome = JobResult(job.future, None, translate(error, self._path))
            self._queue.answer((outcome,))
            del job, outcome
        connection.close()
