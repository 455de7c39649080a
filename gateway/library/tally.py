"""What became of patterns, counted in memory and written now and again.

Every new run injects the universal rules: a write for each of them, each time, would cost more than
the run's own record.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable

from gateway.stores.base import StoreError
from gateway.stores.patterns import Event, PatternStore

FLUSH_S = 2.0


class PatternTally:
    """Counts by tenant, pattern and event; at most `FLUSH_S` seconds of them are not written."""

    def __init__(self, store: PatternStore, failed: Callable[[StoreError], None]) -> None:
        self._store = store
        self._failed = failed
        self._counts: Counter[tuple[str, Event, str]] = Counter()

    def note(self, tenant: str, pattern_ids: Iterable[str], event: Event) -> None:
        """Count one event for each of the patterns."""
        for pattern_id in pattern_ids:
            self._counts[tenant, event, pattern_id] += 1

    async def follow(self) -> None:
        """Write what was counted, for ever."""
        while True:
            await asyncio.sleep(FLUSH_S)
            await self.flush()

    async def flush(self) -> None:
        """Write what was counted since the last time."""
        counts, self._counts = self._counts, Counter()
        grouped: dict[tuple[str, Event], list[str]] = {}
        for (tenant, event, pattern_id), number in counts.items():
            grouped.setdefault((tenant, event), []).extend([pattern_id] * number)
        for (tenant, event), pattern_ids in grouped.items():
            try:
                await self._store.record(tenant, pattern_ids, event)
            except StoreError as error:
                self._failed(error)
