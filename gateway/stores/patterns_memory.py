"""Patterns in memory: for `:memory:` stores, tests and the demonstration."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from gateway.steering.etrace.pattern import Match, Pattern, Tier, content_id, with_id
from gateway.stores.patterns import (
    Added,
    Event,
    PatternConflict,
    PatternFilter,
    PatternPage,
    Search,
    SpaceMismatch,
    StoredPattern,
    Vector,
    check_limit,
    decode_cursor,
    suits,
)

_OFF_LOOP = 64
"""Candidates above which similarities are computed in a thread."""


@dataclass(slots=True, kw_only=True)
class _Row:
    number: int
    stored: StoredPattern
    vector: Vector[float] | None = None
    counts: dict[Event, int] = field(default_factory=lambda: dict.fromkeys(Event, 0))


class MemoryPatternStore:
    """A PatternStore that ends with the process; looks at every pattern of the scope."""

    def __init__(self) -> None:
        self._rows: dict[tuple[str, str], _Row] = {}
        self._numbers = itertools.count(1)
        self._space = ""
        self._dimensions = 0

    async def open_space(self, embedder_id: str, dimensions: int) -> int:
        """See PatternStore."""
        if embedder_id != self._space:
            for row in self._rows.values():
                row.vector = None
        self._space, self._dimensions = embedder_id, dimensions
        return sum(_lacks_vector(row) for row in self._rows.values())

    async def add(
        self, entries: Sequence[tuple[Pattern, Vector[float] | None]]
    ) -> list[tuple[Added, str]]:
        """See PatternStore."""
        for _, vector in entries:
            self._check(vector)
        return [self._add(with_id(pattern), vector) for pattern, vector in entries]

    def _add(self, pattern: Pattern, vector: Vector[float] | None) -> tuple[Added, str]:
        same = self._same_content(pattern)
        if same is not None:
            same.vector = same.vector if vector is None else vector
            return Added.UNCHANGED, same.stored.pattern.pattern_id
        now = time.time()
        known = self._rows.get((pattern.tenant, pattern.pattern_id))
        if known is not None:
            known.stored = replace(known.stored, pattern=pattern, updated_at=now)
            known.vector = vector
            return Added.REPLACED, pattern.pattern_id
        stored = StoredPattern(pattern=pattern, created_at=now, updated_at=now)
        row = _Row(number=next(self._numbers), stored=stored, vector=vector)
        self._rows[pattern.tenant, pattern.pattern_id] = row
        return Added.ADDED, pattern.pattern_id

    async def edit(self, pattern: Pattern, vector: Vector[float] | None) -> None:
        """See PatternStore."""
        self._check(vector)
        row = self._rows.get((pattern.tenant, pattern.pattern_id))
        if row is None:
            raise PatternConflict(f"there is no pattern {pattern.pattern_id!r}")
        same = self._same_content(pattern)
        if same is not None and same is not row:
            raise PatternConflict(
                f"pattern {same.stored.pattern.pattern_id!r} has the same content"
            )
        row.stored = replace(row.stored, pattern=pattern, updated_at=time.time())
        row.vector = vector

    async def get(self, tenant: str | None, pattern_id: str) -> StoredPattern | None:
        """See PatternStore."""
        row = self._find(tenant, pattern_id)
        return _shown(row) if row else None

    async def delete(self, tenant: str | None, pattern_id: str) -> bool:
        """See PatternStore."""
        row = self._find(tenant, pattern_id)
        if row is None:
            return False
        del self._rows[row.stored.pattern.tenant, pattern_id]
        return True

    async def list_patterns(
        self, patterns: PatternFilter, *, limit: int = 50, cursor: str | None = None
    ) -> PatternPage:
        """See PatternStore."""
        check_limit(limit)
        before = decode_cursor(cursor)
        rows = [
            row
            for row in sorted(self._rows.values(), key=lambda row: -row.number)
            if (before is None or row.number < before) and _admits(patterns, row.stored.pattern)
        ]
        page = rows[:limit]
        more = str(page[-1].number) if len(rows) > limit else None
        return PatternPage(patterns=tuple(map(_shown, page)), next_cursor=more)

    async def search(self, search: Search) -> list[Match]:
        """See PatternStore."""
        self._check(search.vector)
        rows = [
            row
            for row in self._rows.values()
            if row.stored.pattern.tier is search.tier
            and row.stored.pattern.tenant == search.scope
            and suits(row.stored.pattern, search.failure_type, search.model)
        ]
        if len(rows) <= _OFF_LOOP:
            return _nearest(rows, search)
        return await asyncio.to_thread(_nearest, rows, search)

    async def universal(self, *, model: str = "", limit: int = 32) -> list[Match]:
        """See PatternStore."""
        rules = [
            row.stored.pattern
            for row in self._rows.values()
            if row.stored.pattern.tier is Tier.E3 and suits(row.stored.pattern, None, model)
        ]
        rules.sort(key=lambda pattern: pattern.pattern_id)
        return [Match(pattern=pattern, similarity=1.0) for pattern in rules[:limit]]

    async def record(
        self, tenant: str, pattern_ids: Sequence[str], event: Event, by: int = 1
    ) -> None:
        """See PatternStore."""
        for pattern_id in pattern_ids:
            row = self._find(tenant, pattern_id)
            if row is not None:
                row.counts[event] = max(0, row.counts[event] + by)

    async def without_vector(self, limit: int) -> list[Pattern]:
        """See PatternStore."""
        rows = filter(_lacks_vector, self._rows.values())
        return [row.stored.pattern for row in itertools.islice(rows, limit)]

    async def set_vectors(self, entries: Sequence[tuple[Pattern, Vector[float]]]) -> None:
        """See PatternStore."""
        for pattern, vector in entries:
            self._check(vector)
            row = self._rows.get((pattern.tenant, pattern.pattern_id))
            # Edited or removed while its vector was made: the vector is not its own any more.
            if row is not None and row.stored.pattern == pattern:
                row.vector = vector

    async def rebuild(self) -> None:
        """There is no index to make anew."""

    async def count(self) -> int:
        """See PatternStore."""
        return len(self._rows)

    def _check(self, vector: Vector[float] | None) -> None:
        if vector is not None and len(vector) != self._dimensions:
            raise SpaceMismatch(
                f"a vector of {len(vector)} dimensions in a space of {self._dimensions}"
            )

    def _find(self, tenant: str | None, pattern_id: str) -> _Row | None:
        if tenant is not None:
            own = self._rows.get((tenant, pattern_id))
            return own or self._rows.get(("", pattern_id))
        return next((row for key, row in self._rows.items() if key[1] == pattern_id), None)

    def _same_content(self, pattern: Pattern) -> _Row | None:
        digest = content_id(pattern)
        rows = (row for key, row in self._rows.items() if key[0] == pattern.tenant)
        return next((row for row in rows if content_id(row.stored.pattern) == digest), None)


def _nearest(rows: Iterable[_Row], search: Search) -> list[Match]:
    matches = [
        Match(pattern=row.stored.pattern, similarity=similarity)
        for row in rows
        if row.vector is not None
        and (similarity := _cosine(row.vector, search.vector)) >= search.floor
    ]
    matches.sort(key=lambda match: (-match.similarity, match.pattern.pattern_id))
    return matches[: search.limit]


def _cosine(one: Vector[float], other: Vector[float]) -> float:
    return max(-1.0, min(1.0, sum(a * b for a, b in zip(one, other, strict=True))))


def _lacks_vector(row: _Row) -> bool:
    return row.vector is None and row.stored.pattern.tier is not Tier.E3


def _shown(row: _Row) -> StoredPattern:
    counts = {event.value: number for event, number in row.counts.items()}
    return replace(row.stored, counts=counts, indexed=not _lacks_vector(row))


def _admits(wanted: PatternFilter, pattern: Pattern) -> bool:
    return (
        (wanted.tenant is None or pattern.tenant in ("", wanted.tenant))
        and (wanted.tier is None or pattern.tier is wanted.tier)
        and (wanted.failure_type is None or pattern.failure_type == wanted.failure_type)
        and (wanted.model_family is None or pattern.model_family == wanted.model_family)
        and (wanted.text is None or wanted.text.lower() in _payload(pattern).lower())
    )


def _payload(pattern: Pattern) -> str:
    return json.dumps(dict(pattern.fields), ensure_ascii=False)
