"""The patterns of a store in memory: a search there is exact, takes no database, and outlives one.

A gateway whose database is away gives the guidance that every other one gives, since all of them
compare a query with the same patterns. It also takes less of the processor than any search in
SQLite (`bench/patterns.py`)."""

from __future__ import annotations

import asyncio
import time
from array import array
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import orjson

from gateway.core.guidance_text import family_matches
from gateway.core.pattern import PatternMatch, Tier
from gateway.stores.patterns import CopiedPattern, Mark, VectorSearch, scope_of
from gateway.stores.protocols import StoreError
from gateway.stores.sql.engine import Row
from gateway.stores.sql.patterns import PatternStore, pattern_of
from gateway.tasks import off_loop

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# Seconds between two looks for changes by another process.
CHECKED_S = 5.0

# Most memory for vectors: those of 131,072 patterns of 256 dimensions. Their texts come on top.
MOST_BYTES = 128 * 2**20

MOST_RULES = 1000
# Patterns that are compared on the event loop: as long as it takes to hand them to a thread.
_ON_THE_LOOP = 10_000

# Times the duration of a reading until the next: at most a tenth of the processor is for it.
_RESTS = 10


class _Scope:
    """The patterns of one tier that belong to one tenant, or are shared, in the order of their
    numbers."""

    # of unit length, one row a pattern; NaN for zeros, which are similar to nothing
    vectors: NDArray[np.float32]

    def __init__(self) -> None:
        self.floats = bytearray()
        # As JSON, one after the other: those that are found become patterns again.
        self.rows = bytearray()
        # Places in `rows`: the end of each, behind the beginning of the first.
        self.ends = array("q", [0])
        # The number of each pattern's failure type and model family.
        self.kinds = array("l")
        # Places of the patterns for each cause.
        self.named: dict[str, list[int]] = {}

    def row(self, number: int) -> Row:
        """The row of a pattern, for `pattern_of`."""
        begin, end = self.ends[number : number + 2]
        row: Row = orjson.loads(memoryview(self.rows)[begin:end])
        return row

    def close(self, dimensions: int) -> None:
        """All are in."""
        import numpy as np

        self.vectors = np.frombuffer(self.floats, np.float32).reshape(-1, dimensions)
        with np.errstate(invalid="ignore", divide="ignore"):
            self.vectors /= np.sqrt(np.vecdot(self.vectors, self.vectors))[:, None]


class PatternCopy:
    """The patterns of a store at one time. `mark`: that of the store then; `rules`: the universal
    ones; `searched`: the others are in memory, too."""

    def __init__(self, mark: Mark, rules: list[PatternMatch], *, searched: bool):
        self.mark = mark
        self._rules = rules
        self.searched = searched
        self._scopes: dict[tuple[str, str], _Scope] = {}
        self._kinds: dict[tuple[str, str], int] = {}

    def add(self, patterns: Sequence[CopiedPattern]) -> None:
        """Take patterns in that are searched."""
        for each in patterns:
            scope = self._scopes.setdefault((each.tenant, each.tier), _Scope())
            scope.floats += each.vector
            scope.rows += each.row
            scope.ends.append(len(scope.rows))
            for cause in each.causes:
                scope.named.setdefault(cause, []).append(len(scope.kinds))
            kind = (each.failure_type, each.model_family)
            scope.kinds.append(self._kinds.setdefault(kind, len(self._kinds)))

    def close(self, dimensions: int) -> None:
        """All are in."""
        for scope in self._scopes.values():
            scope.close(dimensions)

    def has_any(self, tier: Tier, tenant: str) -> bool:
        """True if a search of this tier for this tenant can find something."""
        return (scope_of(tier, tenant), tier.value) in self._scopes

    async def universal(self, *, limit: int) -> list[PatternMatch]:
        """The universal rules, in order of their ids."""
        return self._rules[:limit]

    async def search(self, search: VectorSearch) -> list[PatternMatch]:
        """The nearest patterns, as `PatternStore.search` finds them."""
        scope = self._scopes.get((search.scope, search.tier.value))
        if scope is None:
            return []
        if len(scope.kinds) > _ON_THE_LOOP:
            return await off_loop(self._nearest, scope, search)
        return self._nearest(scope, search)

    def _nearest(self, scope: _Scope, search: VectorSearch) -> list[PatternMatch]:
        import numpy as np

        suit = np.array([_suits(kind, search) for kind in self._kinds])
        vector = np.frombuffer(search.vector, np.float32)
        with np.errstate(invalid="ignore"):
            similar = np.vecdot(scope.vectors, vector / np.sqrt(vector @ vector))
        suits = suit[np.frombuffer(scope.kinds, "l")]
        if search.cause:
            named = np.array(scope.named.get(search.cause, ()), np.intp)
            places = named[suits[named]]
            similar = np.nan_to_num(similar)
        else:
            places = np.flatnonzero((similar >= search.floor) & suits)
        if len(places) > search.limit:
            least = np.partition(similar[places], -search.limit)[-search.limit]
            places = places[similar[places] >= least]
        best = places[np.argsort(-similar[places], kind="stable")][: search.limit]
        return [
            PatternMatch(
                pattern=pattern_of(scope.row(place)),
                similarity=max(-1.0, min(1.0, float(similar[place]))),
            )
            for place in best
        ]


def _suits(kind: tuple[str, str], search: VectorSearch) -> bool:
    failure_type, family = kind
    typed = not search.failure_type or failure_type in ("", search.failure_type)
    return typed and family_matches(family, search.model)


class PatternMemory:
    """Keeps a copy of the patterns of a store, and up to date while `follow` runs. `copy`: the
    newest one, None before the first; `current`: no change is known that is not in it."""

    def __init__(self, store: PatternStore):
        self.copy: PatternCopy | None = None
        self.current = False
        self._store = store
        self._changed = asyncio.Event()

    @property
    def searched(self) -> PatternCopy | None:
        """The newest copy, if the patterns that are searched are in it."""
        if self.copy is not None and self.copy.searched:
            return self.copy
        return None

    def forget(self) -> None:
        """Patterns have changed: until they are read again, the store is searched."""
        self.current = False
        self._changed.set()

    async def follow(self) -> None:
        """Read the patterns again whenever they have changed, without end."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(CHECKED_S):
                    await self._changed.wait()
            begun = time.monotonic()
            try:
                await self.refresh()
            except StoreError:
                continue
            await asyncio.sleep(_RESTS * (time.monotonic() - begun))

    async def refresh(self) -> None:
        """Read the patterns, if they have changed. Raises: StoreError."""
        self._changed.clear()
        mark = await self._store.mark()
        if self.copy is None or self.copy.mark != mark:
            self.copy = await self._read(mark)
        self.current = not self._changed.is_set()

    async def _read(self, mark: Mark) -> PatternCopy:
        rules = await self._store.universal(limit=MOST_RULES)
        size = 4 * mark.vectors * mark.dimensions  # as float32
        copy = PatternCopy(mark, rules, searched=size <= MOST_BYTES)
        after = 0
        while copy.searched and (page := await self._store.copied(after)):
            copy.add(page)
            after = page[-1].number
        copy.close(mark.dimensions)
        return copy
