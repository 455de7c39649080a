"""What became of patterns, counted in memory and written now and again.

Every new run injects the universal rules: a write for each of them, each time, would cost more than
the run's own record.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from gateway.stores.base import StoreError
from gateway.stores.patterns import Event, PatternStore
from gateway.stores.queries import RunTrace

FLUSH_S = 2.0
"""Seconds between two writes of what was counted: what a crash can lose of it."""
_MEANS: Mapping[str | None, Event] = {"success": Event.HELPED, "failure": Event.HURT}


def judged_by(trace: RunTrace) -> list[str]:
    """The patterns that the outcome of a run says something about.

    Universal rules are given to every run: an outcome says nothing about them.
    """
    rows = [row for row in trace.injections if row.applied and row.tier in ("e1", "e2")]
    return sorted({row.pattern_id for row in rows if row.pattern_id})


class PatternTally:
    """Counts by tenant, pattern and event; at most `FLUSH_S` seconds of them are not written."""

    def __init__(self, store: PatternStore, failed: Callable[[StoreError], None]) -> None:
        self._store = store
        self._failed = failed
        self._counts: Counter[tuple[str, Event, str]] = Counter()

    def note(self, tenant: str, pattern_ids: Iterable[str], event: Event, by: int = 1) -> None:
        """Count one event for each of the patterns, or take one back: `by` = -1."""
        for pattern_id in pattern_ids:
            self._counts[tenant, event, pattern_id] += by

    def verdict(
        self, tenant: str, pattern_ids: Iterable[str], outcome: str | None, before: str | None
    ) -> None:
        """Count a run's outcome for what it was given, in place of the one it had before."""
        given = tuple(pattern_ids)
        if outcome == before:
            return
        if before in _MEANS:
            self.note(tenant, given, _MEANS[before], -1)
        if outcome in _MEANS:
            self.note(tenant, given, _MEANS[outcome])

    async def follow(self) -> None:
        """Write what was counted, for ever."""
        while True:
            await asyncio.sleep(FLUSH_S)
            await self.flush()

    async def flush(self) -> None:
        """Write what was counted since the last time."""
        counts, self._counts = self._counts, Counter()
        grouped: dict[tuple[str, Event, int], list[str]] = {}
        for (tenant, event, pattern_id), number in counts.items():
            if number:
                grouped.setdefault((tenant, event, number), []).append(pattern_id)
        for (tenant, event, number), pattern_ids in grouped.items():
            try:
                await self._store.record(tenant, pattern_ids, event, number)
            except StoreError as error:
                self._failed(error)
