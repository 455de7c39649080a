"""The times at which old runs are removed. What goes first: `gateway/stores/sql/retention.py`.

The age of a run is the difference of two readings of the wall clock: after a jump it is wrong, and
a clock set 400 days ahead makes every run old."""

import asyncio
import time
from collections.abc import Callable
from math import inf

from gateway.config.storage import StorageSettings
from gateway.observability.logging import get_logger
from gateway.stores.filters import RunFilter
from gateway.stores.lists import PageRequest
from gateway.stores.protocols import StoreError
from gateway.stores.sql.runs import RunStore

_DAY_S = 86_400.0
_NEWEST = PageRequest(limit=1, sort="updated_at")


def steady_clock() -> float:
    """Seconds since the machine's start, its sleep included where the system counts that."""
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.monotonic()


class Retention:
    """Removes runs beyond the configured age or size, except those active in this process.
    `active_within`: ids of the conversations with a commit in the last so many seconds. The clock
    `wall` is not believed for a while after it has jumped; nobody sets the clock `steady`."""

    def __init__(
        self,
        runs: RunStore,
        active_within: Callable[[float], list[str]],
        settings: StorageSettings,
        *,
        wall: Callable[[], float] = lambda: time.time(),
        steady: Callable[[], float] = steady_clock,
    ):
        self._runs = runs
        self._active_within = active_within
        self._settings = settings
        self._clocks = wall, steady
        self._last: tuple[float, float] | None = None
        self._trusted_from = -inf
        self._failing = False
        self._log = get_logger("gateway.retention")

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
        now, steady = (clock() for clock in self._clocks)
        await self._check_clock(now, steady)
        removed = 0
        if settings.retention_days and steady >= self._trusted_from:
            kept_s = settings.retention_days * _DAY_S
            active = self._active_within(kept_s)
            removed += (await self._runs.prune(older_than=now - kept_s, keep=active)).runs
        report = await self._runs.prune(
            max_bytes=int(settings.max_size_mb * 2**20) or inf,
            active_since=now - settings.retention_interval_s,
            keep=self._active_within(settings.retention_interval_s),
        )
        removed += report.runs
        if removed:
            self._log.info("old runs removed", runs=removed)
        return removed

    async def _check_clock(self, now: float, steady: float) -> None:
        """Note a jump of the wall clock since the last pass."""
        settings = self._settings
        last = self._last
        if last is None:
            # At the start there is nothing to compare the clock with but the newest run.
            newest = await self._runs.list_runs(RunFilter(), _NEWEST)
            idle_s = 0.0
            if newest.runs:
                idle_s = now - newest.runs[0].updated_at
            jumped = 0 < settings.retention_days * _DAY_S < idle_s
            why = "every run is old by the clock"
            facts = {"idle_days": round(idle_s / _DAY_S)}
        else:
            jump_s = (now - last[0]) - (steady - last[1])
            jumped = abs(jump_s) > settings.clock_jump_s
            why = "the clock jumped"
            facts = {"by_s": round(jump_s)}
        if jumped:
            self._trusted_from = steady + settings.clock_settle_s
            self._log.warning(
                f"{why}: for now no run is removed for its age",
                resumes_in_s=round(settings.clock_settle_s),
                **facts,
            )
        self._last = now, steady
