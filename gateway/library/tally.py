"""How often patterns were injected, counted in memory and written in intervals.

Every new run injects the universal rules: one write per rule and run would cost more than the
record of the run.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from gateway.stores.patterns import Event, PatternStore
from gateway.stores.protocols import StoreError, StoreUnavailable

FLUSH_S = 2.0
"""Seconds between two writes of the counts; a crash loses at most this much."""


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
