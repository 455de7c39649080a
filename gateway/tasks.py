"""Background tasks that are not garbage-collected while they run."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

_running: set[asyncio.Task[Any]] = set()


def spawn(coro: Coroutine[Any, Any, T], *, name: str | None = None) -> asyncio.Task[T]:
    """Start `coro` and hold the task until it ends.

    The event loop keeps only a weak reference to a task, so an unreferenced one may vanish.
    """
    task = asyncio.get_running_loop().create_task(coro, name=name)
    _running.add(task)
    task.add_done_callback(_running.discard)
    return task


class Unfinished:
    """What is left to do of requests that were answered: waited for before a stop."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Do it in a task of the event loop, which is returned."""
        task = spawn(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def wait(self, timeout_s: float) -> None:
        """Return when all is done, or after so many seconds."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=timeout_s)
