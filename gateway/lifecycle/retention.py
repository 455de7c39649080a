"""Removes old runs in intervals, and distrusts a wall clock that jumps.

The age of a run is the difference of two readings of the wall clock. After a jump that difference
is wrong: a clock set 400 days ahead makes every run old, also those that are still going on.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Protocol

from gateway.config.storage import StorageSettings
from gateway.observability.logging import get_logger
from gateway.stores.protocols import RunStore, StoreError
from gateway.stores.queries import PageRequest, RunFilter

_DAY_S = 86_400.0


class Activity(Protocol):
    """Knows what this process committed last."""

    def active_within(self, seconds: float) -> list[str]:
        """Ids of the conversations with a commit in the last `seconds`."""


def steady_clock() -> float:
    """Seconds since the machine's start, its sleep included where the system counts that."""
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.monotonic()


class WallClock:
    """The wall clock, which is not believed for a while after it has jumped. `steady`: seconds of a
    clock that nobody sets."""

    def __init__(
        self,
        settings: StorageSettings,
        *,
        wall: Callable[[], float] | None = None,
        steady: Callable[[], float] = steady_clock,
    ) -> None:
        self._settings = settings
        self._wall = wall or (lambda: time.time())
        self._steady = steady
        self._last: tuple[float, float] | None = None
        self._trusted_from = float("-inf")
        self._log = get_logger("gateway.lifecycle.retention")

    @property
    def is_trusted(self) -> bool:
        """Whether no jump was seen lately."""
        return self._steady() >= self._trusted_from

    async def read(self, runs: RunStore) -> float:
        """Seconds of the epoch; a jump since the last reading is noted. Raises: StoreError."""
        now, steady, last = self._wall(), self._steady(), self._last
        if last is None:
            # At the start there is nothing to compare the clock with but the newest run.
            newest = await runs.list_runs(RunFilter(), PageRequest(limit=1, sort="updated_at"))
            kept_s = self._settings.retention_days * _DAY_S
            idle_s = now - newest.runs[0].updated_at if newest.runs else 0.0
            if kept_s and idle_s > kept_s:
                days = round(idle_s / _DAY_S)
                self._distrust(steady, "every run is old by the clock", idle_days=days)
        else:
            jump_s = (now - last[0]) - (steady - last[1])
            if abs(jump_s) > self._settings.clock_jump_s:
                self._distrust(steady, "the clock jumped", by_s=round(jump_s))
        self._last = (now, steady)
        return now

    def _distrust(self, steady: float, why: str, **facts: int) -> None:
        self._trusted_from = steady + self._settings.clock_settle_s
        self._log.warning(
            f"{why}: for now no run is removed for its age",
            resumes_in_s=round(self._settings.clock_settle_s),
            **facts,
        )


class Retention:
    """Removes runs beyond the configured age or size, except those active in this process."""

    def __init__(
        self,
        runs: RunStore,
        activity: Activity,
        settings: StorageSettings,
        *,
        wall: Callable[[], float] | None = None,
        steady: Callable[[], float] = steady_clock,
    ) -> None:
        self._runs = runs
        self._activity = activity
        self._settings = settings
        self._clock = WallClock(settings, wall=wall, steady=steady)
        self._failing = False
        self._log = get_logger("gateway.lifecycle.retention")

    async def follow(self) -> None:
        """Make a pass every `retention_interval_s`, without end; an error is logged once."""
        while True:
            try:
                await self.run()
                self._failing = False
            except StoreError as exc:
                if not self._failing:
                    self._log.error("retention failed", reason=str(exc))
                self._failing = True
            await asyncio.sleep(self._settings.retention_interval_s)

    async def run(self) -> int:
        """Make one pass; the number of runs removed. Raises: StoreError."""
        settings = self._settings
        now = await self._clock.read(self._runs)
        removed = 0
        if settings.retention_days and self._clock.is_trusted:
            kept_s = settings.retention_days * _DAY_S
            report = await self._runs.prune(
                older_than=now - kept_s, keep=self._activity.active_within(kept_s)
            )
            removed += report.runs
        interval_s = settings.retention_interval_s
        report = await self._runs.prune(
            max_bytes=int(settings.max_size_mb * 2**20) or None,
            active_since=now - interval_s,
            keep=self._activity.active_within(interval_s),
        )
        removed += report.runs
        if removed:
            self._log.info("old runs removed", runs=removed)
        return removed
