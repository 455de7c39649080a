"""How often patterns were injected, helped and hurt, counted in memory and written in intervals.

Every new run injects the universal rules: one write per rule and run would cost more than the
record of the run.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from gateway.stores.patterns import Event, PatternStore
from gateway.stores.protocols import StoreError, StoreUnavailable
from gateway.stores.queries import RunTrace

FLUSH_S = 2.0
"""Seconds between two writes of the counts; a crash loses at most this much."""
_MEANS: Mapping[str | None, Event] = {"success": Event.HELPED, "failure": Event.HURT}


def judged_by(trace: RunTrace) -> list[str]:
    """The patterns whose counts the outcome of a run changes.

    Universal rules are given to every run, so an outcome is no evidence about them.
    """
    rows = [row for row in trace.injections if row.applied and row.tier in ("e1", "e2")]
    return sorted({row.pattern_id for row in rows if row.pattern_id})


class PatternTally:
    """Counts by tenant, pattern and event; those of the last `FLUSH_S` seconds are not written."""

    def __init__(self, store: PatternStore, failed: Callable[[StoreError], None]) -> None:
        self._store = store
        self._failed = failed
        self._counts: Counter[tuple[str, Event, str]] = Counter()
        self._failing = False

    def note(self, tenant: str, pattern_ids: Iterable[str], event: Event, by: int = 1) -> None:
        """Add `by` to the count of an event for each pattern; -1 takes one back."""
        for pattern_id in pattern_ids:
            self._counts[tenant, event, pattern_id] += by

    def verdict(
        self, tenant: str, pattern_ids: Iterable[str], outcome: str | None, before: str | None
    ) -> None:
        """Count a run's outcome for the patterns it was given, in place of an earlier outcome."""
        given = tuple(pattern_ids)
        if outcome == before:
            return
        if before in _MEANS:
            self.note(tenant, given, _MEANS[before], -1)
        if outcome in _MEANS:
            self.note(tenant, given, _MEANS[outcome])

    async def follow(self) -> None:
        """Write the counts every `FLUSH_S` seconds, without end."""
        while True:
            await asyncio.sleep(FLUSH_S)
            await self.flush()

    async def flush(self) -> None:
        """Write the counts since the last write; those that cannot be written now are kept.

        The first of several failures in a row is reported to `failed`.
        """
        counts, self._counts = self._counts, Counter()
        grouped: dict[tuple[str, Event, int], list[str]] = {}
        for (tenant, event, pattern_id), number in counts.items():
            if number:
                grouped.setdefault((tenant, event, number), []).append(pattern_id)
        available = True
        for (tenant, event, number), pattern_ids in grouped.items():
            if available:
                available = await self._write(tenant, pattern_ids, event, number)
            if not available:
                self.note(tenant, pattern_ids, event, number)
        if available:
            self._failing = False

    async def _write(
        self, tenant: str, pattern_ids: Sequence[str], event: Event, number: int
    ) -> bool:
        """False when the store is unavailable; a count that it refuses is lost."""
        try:
            await self._store.record(tenant, pattern_ids, event, number)
        except StoreError as error:
            if not self._failing:
                self._failed(error)
            self._failing = True
            return not isinstance(error, StoreUnavailable)
        return True
