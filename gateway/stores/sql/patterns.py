"""Patterns; their vectors are in the engine's index."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gateway.steering.guidance.pattern import Pattern, PatternMatch, content_id, with_id
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
from gateway.stores.protocols import PATTERNS
from gateway.stores.sql import pattern_rows as rows
from gateway.stores.sql.engine import Connection, Engine, Row, VectorIndex
from gateway.stores.sql.pattern_rows import COLUMNS, pattern_of

_TABLE = "patterns"
_LACKING = "p.tier <> 'e3' AND p.origin = '' AND v.pk IS NULL"
_CURRENT = """
SELECT pk FROM patterns
WHERE tenant = :tenant AND pattern_id = :pattern_id AND digest = :digest
"""


class SQLPatternStore:
    """`PatternStore` over an engine whose database was opened for vectors."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._index = engine.vectors()

    async def open_space(self, embedder_id: str, dimensions: int) -> int:
        """See PatternStore.

        Raises: StoreCorrupt when the index is damaged; the space is open nevertheless, so that
        `rebuild` can repair it.
        """
        await self._index.open(embedder_id, dimensions)
        lacking = f"SELECT count(*) FROM patterns AS p {self._index.joined} WHERE {_LACKING}"
        return int((await self._engine.fetch(lacking))[0][0])

    async def add(
        self, entries: Sequence[tuple[Pattern, Vector[float] | None]]
    ) -> list[tuple[Added, str]]:
        index = self._checked(*(vector for _, vector in entries))

        async def work(connection: Connection) -> list[tuple[Added, str]]:
            # One at a time: two gateways may bring the same patterns, as at their first start.
            await connection.take_turn(_TABLE)
            return [
                await rows.add(with_id(each), vector, index, connection) for each, vector in entries
            ]

        added = await self._engine.transact(work)
        await self._engine.changed(PATTERNS)
        return added

    async def edit(self, pattern: Pattern, vector: Vector[float] | None) -> None:
        index = self._checked(vector)

        async def work(connection: Connection) -> None:
            await connection.take_turn(_TABLE)
            known = await rows.own(pattern, connection)
            if known is None:
                raise PatternConflict(f"there is no pattern {pattern.pattern_id!r}")
            same = await rows.same_content(pattern, connection)
            if same is not None and same[0] != known[0]:
                raise PatternConflict(f"pattern {same[1]!r} has the same content")
            await rows.replace(known[0], pattern, vector, index, connection)

        await self._engine.transact(work)
        await self._engine.changed(PATTERNS)

    async def get(self, tenant: str | None, pattern_id: str) -> StoredPattern | None:
        index = self._checked()

        async def work(connection: Connection) -> StoredPattern | None:
            pk = await rows.find(tenant, pattern_id, connection)
            found = await rows.select("p.pk = :pk", {"pk": pk}, 1, index, connection)
            return found[0][1] if found else None

        return await self._engine.read(work)

    async def delete(self, tenant: str | None, pattern_id: str) -> bool:
        index = self._checked()

        async def work(connection: Connection) -> bool:
            pk = await rows.find(tenant, pattern_id, connection)
            if pk is None:
                return False
            await index.forget(pk, connection)
            await connection.fetch("DELETE FROM patterns WHERE pk = :pk", pk=pk)
            return True

        deleted = await self._engine.transact(work)
        await self._engine.changed(PATTERNS)
        return deleted

    async def list_patterns(
        self, patterns: PatternFilter, *, limit: int = 50, cursor: str | None = None
    ) -> PatternPage:
        check_limit(limit)
        index, bound = self._checked(), dict[str, Any]()
        condition = rows.where(patterns, decode_cursor(cursor), bound, self._engine.dialect)
        found = await self._engine.read(
            lambda connection: rows.select(condition, bound, limit + 1, index, connection)
        )
        page = found[:limit]
        more = str(page[-1][0]) if len(found) > limit else None
        return PatternPage(patterns=tuple(stored for _, stored in page), next_cursor=more)

    async def search(self, search: Search) -> list[PatternMatch]:
        index = self._checked(search.vector)
        if not any(search.vector):
            return []  # a text without a known word is similar to nothing

        async def work(connection: Connection) -> list[PatternMatch]:
            families = await rows.suitable_families(search.model, connection)
            return [
                PatternMatch(pattern=pattern_of(row), similarity=max(-1.0, min(1.0, similarity)))
                for row, similarity in await index.nearest(search, families, connection)
            ]

        async with index.searching:
            return await self._engine.read(work)

    async def universal(self, *, model: str = "", limit: int = 32) -> list[PatternMatch]:
        async def work(connection: Connection) -> Sequence[Row]:
            families = await rows.suitable_families(model, connection)
            one_of = self._engine.dialect.among("model_family", "families", "text")
            only = "" if families is None else f"AND {one_of} "
            return await connection.fetch(
                f"SELECT {COLUMNS} FROM patterns AS p WHERE tier = 'e3' {only}"
                "ORDER BY pattern_id LIMIT :limit",
                limit=limit,
                families=families,
            )

        rules = await self._engine.read(work)
        return [PatternMatch(pattern=pattern_of(row), similarity=1.0) for row in rules]

    async def record(
        self, tenant: str, pattern_ids: Sequence[str], event: Event, by: int = 1
    ) -> None:
        count = event.value
        more = f"CASE WHEN {count} + :by > 0 THEN {count} + :by ELSE 0 END"
        statement = f"UPDATE patterns SET {count} = {more} WHERE pk = :pk"

        async def work(connection: Connection) -> None:
            found = [await rows.find(tenant, each, connection) for each in pattern_ids]
            # In one order in every gateway, so that no two wait for each other.
            for pk in sorted([pk for pk in found if pk is not None]):
                await connection.fetch(statement, by=by, pk=pk)

        await self._engine.transact(work)

    async def without_vector(self, limit: int) -> list[Pattern]:
        found = await self._engine.fetch(
            f"SELECT {COLUMNS} FROM patterns AS p {self._checked().joined} WHERE {_LACKING} "
            f"ORDER BY p.pk LIMIT {limit}"
        )
        return [pattern_of(row) for row in found]

    async def set_vectors(self, entries: Sequence[tuple[Pattern, Vector[float]]]) -> None:
        index = self._checked(*(vector for _, vector in entries))

        async def work(connection: Connection) -> None:
            await connection.take_turn(_TABLE)
            for pattern, vector in entries:
                # Skips a pattern that was edited or removed while its vector was computed.
                pk = await connection.value(
                    _CURRENT,
                    tenant=pattern.tenant,
                    pattern_id=pattern.pattern_id,
                    digest=content_id(pattern),
                )
                if pk is not None:
                    await index.put(pk, vector, connection)

        await self._engine.transact(work)

    async def rebuild(self) -> None:
        await self._checked().rebuild()

    async def count(self) -> int:
        return int((await self._engine.fetch("SELECT count(*) FROM patterns"))[0][0])

    def _checked(self, *vectors: Vector[float] | None) -> VectorIndex:
        """The index, after a check of the vectors' dimensions. Raises: SpaceMismatch."""
        if self._index.dimensions is None:
            raise SpaceMismatch("no vector space is open")
        check_dimensions(self._index.dimensions, vectors)
        return self._index
