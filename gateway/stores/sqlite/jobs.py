"""Passes work from the event loop to a thread, and its results back."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Any, NamedTuple

import apsw

from gateway.stores.protocols import StoreOverloaded, StoreUnavailable

Work = Callable[[apsw.Connection], Any]


class Job(NamedTuple):
    """A function of the connection, and the future that gets its result."""

    work: Work
    future: asyncio.Future[Any]


class JobResult(NamedTuple):
    """A job's `error`, or else its `value`."""

    future: asyncio.Future[Any]
    value: Any
    error: BaseException | None


class JobQueue:
    """A bounded queue from one event loop to one or more threads.

    `submit` and the results belong to the loop, `jobs` to the threads: a thread that takes None
    from it stops.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, *, limit: int, name: str) -> None:
        self.jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._loop = loop
        self._limit = limit
        self._name = name
        self._waiting = 0
        self._refusal: StoreUnavailable | None = None

    def submit(self, work: Work) -> asyncio.Future[Any]:
        """Accept `work`; returns the future of its result.

        Raises: StoreOverloaded, or what `refuse` was given.
        """
        if self._refusal is not None:
            raise self._refusal
        if self._waiting >= self._limit:
            raise StoreOverloaded(
                f"{self._waiting} {self._name} are waiting for the store (storage.queue_limit)"
            )
        self._waiting += 1
        future = self._loop.create_future()
        self.jobs.put(Job(work, future))
        return future

    def refuse(self, error: StoreUnavailable) -> None:
        """Accept no more work: raise `error` instead."""
        self._refusal = error

    def stop(self, threads: int) -> None:
        """Make `threads` threads stop after the work accepted so far. Callable from any thread."""
        for _ in range(threads):
            self.jobs.put(None)

    def answer(self, outcomes: Sequence[JobResult]) -> None:
        """Deliver results to the loop in one call. Called by the threads."""
        # When the loop is closed, nothing waits for the results any more.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._deliver, outcomes)

    def _deliver(self, outcomes: Sequence[JobResult]) -> None:
        self._waiting -= len(outcomes)
        for future, value, error in outcomes:
            if future.done():  # the caller was cancelled; the work was done nevertheless
                continue
            if error is None:
                future.set_result(value)
            else:
                future.set_exception(error)
