"""Threads that read, each on its own connection."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import apsw

from gateway.stores.sqlite.connection import translate
from gateway.stores.sqlite.jobs import JobQueue, Outcome


class Readers:
    """Runs jobs as they come, on whichever connection is free; none waits for the writer."""

    def __init__(self, connections: Sequence[apsw.Connection], queue: JobQueue, path: str) -> None:
        self._queue = queue
        self._path = path
        self._threads = [
            threading.Thread(target=self._run, args=(c,), name=f"store-reader-{n}", daemon=True)
            for n, c in enumerate(connections)
        ]

    def __len__(self) -> int:
        return len(self._threads)

    def start(self) -> None:
        """Begin to work."""
        for thread in self._threads:
            thread.start()

    def join(self) -> None:
        """Wait for the threads to end; blocks."""
        for thread in self._threads:
            thread.join()

    def _run(self, connection: apsw.Connection) -> None:
        while (job := self._queue.jobs.get()) is not None:
            try:
                outcome = Outcome(job.future, job.work(connection), None)
            except Exception as error:
                outcome = Outcome(job.future, None, translate(error, self._path))
            self._queue.answer((outcome,))
            del job, outcome
        connection.close()
