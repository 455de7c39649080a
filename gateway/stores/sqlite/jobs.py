"""Work handed from the event loop to a thread, and its results handed back."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Any, NamedTuple

import apsw

from gateway.stores.base import StoreClosed, StoreOverloaded

Work = Callable[[apsw.Connection], Any]


class Job(NamedTuple):
    """A function of the connection, and where its result goes."""

    work: Work
    future: asyncio.Future[Any]


class Outcome(NamedTuple):
    """What came of a job: `error`, or else `value`."""

    future: asyncio.Future[Any]
    value: Any
    error: BaseException | None


class JobQueue:
    """A bounded queue from one event loop to one or more threads.

    `submit` and the results live on the loop, `jobs` is the threads' end: each None taken from
    it asks one thread to stop.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, *, limit: int, name: str) -> None:
        self.jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._loop = loop
        self._limit = limit
        self._name = name
        self._waiting = 0
        self._closed = False

    @property
    def waiting(self) -> int:
        """Jobs accepted and not yet answered."""
        return self._waiting

    def submit(self, work: Work) -> asyncio.Future[Any]:
        """Accept `work`; the future brings its result. Raises: StoreClosed, StoreOverloaded."""
        if self._closed:
            raise StoreClosed(f"the store is closed: no more {self._name}")
        if self._waiting >= self._limit:
            raise StoreOverloaded(
                f"{self._waiting} {self._name} are waiting for the store (storage.queue_limit)"
            )
        self._waiting += 1
        future = self._loop.create_future()
        self.jobs.put(Job(work, future))
        return future

    def refuse(self) -> None:
        """Accept no more."""
        self._closed = True

    def stop(self, threads: int) -> None:
        """Let each of `threads` threads stop after what was accepted; from any thread."""
        for _ in range(threads):
            self.jobs.put(None)

    def answer(self, outcomes: Sequence[Outcome]) -> None:
        """Hand results to the loop, waking it once; called from the threads."""
        # A closed loop has nobody left who waits.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._deliver, outcomes)

    def _deliver(self, outcomes: Sequence[Outcome]) -> None:
        self._waiting -= len(outcomes)
        for future, value, error in outcomes:
            if future.done():  # cancelled by the one who waited; the work was done all the same
                continue
            if error is None:
                future.set_result(value)
            else:
                future.set_exception(error)
