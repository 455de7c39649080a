"""When a commit that is not done yet shows that the store is slow, and not only the machine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

_LATE_S = 0.02
"""A timer this late: the process had no processor meanwhile, and a commit that is done may not be
noticed yet."""
_EXTENSIONS = 8
"""Longest wait of all, in limits, for a store that goes on finishing other commits."""


class CommitLimit:
    """Calls `passed` when nothing has been finished for `limit_s`.

    Many commits at once wait for their turn, and on a busy machine each takes longer: while others
    are finished the store works, and a commit in the queue will be done, too. One that is given up
    is in memory alone, where `kill -9` loses it.
    """

    def __init__(self, limit_s: float, passed: Callable[[], None]) -> None:
        self._limit_s = limit_s
        self._passed = passed
        self._loop = asyncio.get_running_loop()
        self._finished_at = float("-inf")

    def finished(self) -> None:
        """The store has finished something."""
        self._finished_at = self._loop.time()

    def watch(self, write: asyncio.Task[int]) -> Callable[[], None]:
        """Watch a commit that begins now; the result ends that."""
        begun = self._loop.time()
        timer: asyncio.TimerHandle

        def look_again(due: float) -> None:
            nonlocal timer
            timer = self._loop.call_at(due, check, due)

        def check(due: float) -> None:
            if write.done():
                return
            now = self._loop.time()
            if now - begun > _EXTENSIONS * self._limit_s:
                self._passed()
            elif now - due > _LATE_S:
                look_again(now + self._limit_s / 4)
            elif (next_due := max(begun, self._finished_at) + self._limit_s) > now:
                look_again(next_due)
            else:
                self._passed()

        look_again(begun + self._limit_s)
        return lambda: timer.cancel()
