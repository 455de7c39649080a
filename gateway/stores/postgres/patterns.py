"""Patterns in PostgreSQL, searched exactly with pgvector.

The patterns of one tenant and tier are all compared. An approximate index with a filter loses
answers: a tenant with a hundredth of 100,000 patterns gets three in ten of its nearest ones.
"""

# ruff: noqa: S608 - statements are put together from names of this package; values are bound

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import asyncpg

from gateway.steering.guidance.pattern import Pattern, PatternMatch, content_id, with_id
from gateway.stores.pattern_codec import COLUMNS
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
    check_dimensions,
    check_limit,
    decode_cursor,
)
from gateway.stores.postgres import pattern_rows as rows
from gateway.stores.postgres.database import Database
from gateway.stores.postgres.text import Arguments, stored_text
from gateway.stores.protocols import PATTERNS

_OPEN = """
INSERT INTO pattern_spaces (embedder_id, dimensions) VALUES ($1, $2)
ON CONFLICT (embedder_id) DO NOTHING
"""
_LACKING = """
FROM patterns AS p WHERE p.tier <> 'e3' AND p.origin = ''
AND NOT EXISTS (SELECT 1 FROM pattern_vectors AS v WHERE v.space = $1 AND v.pk = p.pk)
"""
# With `+ 0` no index on the vectors fits, whatever the planner estimates. The vector is read from
# its array once, not for each row; only the nearest are joined with their wide rows.
_NEAREST = """
SELECT {columns}, 1 - v.distance FROM (
    SELECT pk, (vector <=> (SELECT {vector}::float4[]::vector)) + 0 AS distance
    FROM pattern_vectors WHERE space = {space} AND tenant = {tenant} AND tier = {tier}{narrowed}
    ORDER BY distance, pk LIMIT {limit}
) AS v JOIN patterns AS p USING (pk)
WHERE v.distance <= 1 - {floor}::float8 ORDER BY v.distance, p.pk
"""
_SUITABLE = " AND pk IN (SELECT p.pk FROM patterns AS p WHERE {conditions})"
_CURRENT = """
SELECT pk FROM patterns WHERE tenant = $1 AND pattern_id = $2 AND digest = $3 FOR UPDATE
"""
_UNFIT = """
DELETE FROM pattern_vectors AS v WHERE v.space = $1 AND (
    vector_dims(v.vector) <> $2 OR NOT EXISTS (SELECT 1 FROM patterns AS p WHERE p.pk = v.pk)
)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Space:
    number: int
    dimensions: int


class PostgresPatternStore:
    """A PatternStore in a Database that was opened for vectors."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._space: _Space | None = None

    async def open_space(self, embedder_id: str, dimensions: int) -> int:
        """See PatternStore."""

        async def work(connection: asyncpg.Connection) -> tuple[_Space, int]:
            await connection.execute(_OPEN, stored_text(embedder_id), dimensions)
            sql = "SELECT number, dimensions FROM pattern_spaces WHERE embedder_id = $1"
            number, known = await connection.fetchrow(sql, stored_text(embedder_id))
            if known != dimensions:
                raise SpaceMismatch(
                    f"the embedder {embedder_id!r} had {known} dimensions and has {dimensions} now"
                )
            lacking = await connection.fetchval(f"SELECT count(*) {_LACKING}", number)
            return _Space(number=number, dimensions=dimensions), lacking

        self._space, lacking = await self._database.run(work)
        return lacking

    async def add(
        self, entries: Sequence[tuple[Pattern, Vector[float] | None]]
    ) -> list[tuple[Added, str]]:
        """See PatternStore."""
        space = self._checked(*(vector for _, vector in entries)).number

        async def work(connection: asyncpg.Connection) -> list[tuple[Added, str]]:
            # One at a time: two gateways may bring the same patterns, as at their first start.
            await connection.execute("LOCK TABLE patterns IN SHARE ROW EXCLUSIVE MODE")
            return [
                await rows.add(connection, space, with_id(each), vector) for each, vector in entries
            ]

        added = await self._database.transact(work)
        await self._database.changed(PATTERNS)
        return added

    async def edit(self, pattern: Pattern, vector: Vector[float] | None) -> None:
        """See PatternStore."""
        space = self._checked(vector).number

        async def work(connection: asyncpg.Connection) -> None:
            await connection.execute("LOCK TABLE patterns IN SHARE ROW EXCLUSIVE MODE")
            pk = await rows.own(connection, pattern)
            if pk is None:
                raise PatternConflict(f"there is no pattern {pattern.pattern_id!r}")
            same = await rows.same_content(connection, pattern)
            if same is not None and same[0] != pk:
                raise PatternConflict(f"pattern {same[1]!r} has the same content")
            await rows.replace(connection, space, pk, pattern, vector)

        await self._database.transact(work)
        await self._database.changed(PATTERNS)

    async def get(self, tenant: str | None, pattern_id: str) -> StoredPattern | None:
        """See PatternStore."""
        space = self._checked().number

        async def work(connection: asyncpg.Connection) -> StoredPattern | None:
            values = Arguments()
            pk = await rows.find(connection, tenant, pattern_id)
            condition = f"p.pk = {values.add(pk)}"
            found = await rows.select(connection, space, condition, values, 1)
            return found[0][1] if found else None

        return await self._database.run(work)

    async def delete(self, tenant: str | None, pattern_id: str) -> bool:
        """See PatternStore."""
        self._checked()

        async def work(connection: asyncpg.Connection) -> bool:
            pk = await rows.find(connection, tenant, pattern_id)
            await connection.execute("DELETE FROM pattern_vectors WHERE pk = $1", pk)
            await connection.execute("DELETE FROM patterns WHERE pk = $1", pk)
            return pk is not None

        deleted = await self._database.transact(work)
        await self._database.changed(PATTERNS)
        return deleted

    async def list_patterns(
        self, patterns: PatternFilter, *, limit: int = 50, cursor: str | None = None
    ) -> PatternPage:
        """See PatternStore."""
        check_limit(limit)
        space = self._checked().number
        values = Arguments()
        condition = rows.where(patterns, decode_cursor(cursor), values)
        found = await self._database.run(
            lambda connection: rows.select(connection, space, condition, values, limit + 1)
        )
        page = found[:limit]
        more = str(page[-1][0]) if len(found) > limit else None
        return PatternPage(patterns=tuple(stored for _, stored in page), next_cursor=more)

    async def search(self, search: Search) -> list[PatternMatch]:
        """See PatternStore."""
        space = self._checked(search.vector).number
        if not any(search.vector):
            return []  # a text without a known word is similar to nothing

        async def work(connection: asyncpg.Connection) -> list[Any]:
            families = await rows.suitable_families(connection, search.model)
            values = Arguments()
            statement = _NEAREST.format(
                columns=COLUMNS,
                vector=values.add(search.vector),
                space=values.add(space),
                tenant=values.add(search.scope),
                tier=values.add(search.tier.value),
                floor=values.add(search.floor),
                narrowed=_narrowed(search, families, values),
                limit=values.add(search.limit),
            )
            found: list[Any] = await connection.fetch(statement, *values)
            return found

        return [
            PatternMatch(pattern=rows.to_pattern(row), similarity=max(-1.0, min(1.0, row[-1])))
            for row in await self._database.run(work)
        ]

    async def universal(self, *, model: str = "", limit: int = 32) -> list[PatternMatch]:
        """See PatternStore."""

        async def work(connection: asyncpg.Connection) -> list[Any]:
            families = await rows.suitable_families(connection, model)
            only = "" if families is None else "AND model_family = ANY($2::text[]) "
            values = [limit] if families is None else [limit, families]
            found: list[Any] = await connection.fetch(
                f"SELECT {COLUMNS} FROM patterns AS p WHERE tier = 'e3' {only}"
                "ORDER BY pattern_id LIMIT $1",
                *values,
            )
            return found

        rules = await self._database.run(work)
        return [PatternMatch(pattern=rows.to_pattern(row), similarity=1.0) for row in rules]

    async def record(
        self, tenant: str, pattern_ids: Sequence[str], event: Event, by: int = 1
    ) -> None:
        """See PatternStore."""
        column = event.value
        statement = f"UPDATE patterns SET {column} = greatest(0, {column} + $1) WHERE pk = $2"

        async def work(connection: asyncpg.Connection) -> None:
            found = [await rows.find(connection, tenant, each) for each in pattern_ids]
            # In one order in every gateway, so that no two wait for each other.
            for pk in sorted(pk for pk in found if pk is not None):
                await connection.execute(statement, by, pk)

        await self._database.transact(work)

    async def without_vector(self, limit: int) -> list[Pattern]:
        """See PatternStore."""
        space = self._checked().number
        sql = f"SELECT {COLUMNS} {_LACKING} ORDER BY p.pk LIMIT $2"

        return list(map(rows.to_pattern, await self._database.fetch(sql, space, limit)))

    async def set_vectors(self, entries: Sequence[tuple[Pattern, Vector[float]]]) -> None:
        """See PatternStore."""
        space = self._checked(*(vector for _, vector in entries)).number

        async def work(connection: asyncpg.Connection) -> None:
            for pattern, vector in entries:
                # Skips a pattern that was edited or removed while its vector was computed.
                names = (stored_text(pattern.tenant), stored_text(pattern.pattern_id))
                pk = await connection.fetchval(_CURRENT, *names, content_id(pattern))
                if pk is not None:
                    await rows.put(connection, space, pk, vector)

        await self._database.transact(work)

    async def rebuild(self) -> None:
        """See PatternStore. There is no index to rebuild: vectors that fit no pattern, or are of a
        wrong size, are removed."""
        space = self._checked()

        await self._database.fetch(_UNFIT, space.number, space.dimensions)

    async def count(self) -> int:
        """See PatternStore."""

        ((number,),) = await self._database.fetch("SELECT count(*) FROM patterns")
        return int(number)

    def _checked(self, *vectors: Vector[float] | None) -> _Space:
        """The open space, after a check of the vectors' dimensions. Raises: SpaceMismatch."""
        if self._space is None:
            raise SpaceMismatch("no vector space is open")
        check_dimensions(self._space.dimensions, vectors)
        return self._space


def _narrowed(search: Search, families: Sequence[str] | None, values: Arguments) -> str:
    """The condition for patterns of this failure type and these families of models."""
    conditions = []
    if search.failure_type:
        conditions.append(f"p.failure_type IN ('', {values.add(search.failure_type)})")
    if families is not None:
        conditions.append(f"p.model_family = ANY({values.add(families)}::text[])")
    return _SUITABLE.format(conditions=" AND ".join(conditions)) if conditions else ""
