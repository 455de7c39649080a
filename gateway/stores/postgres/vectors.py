"""The vectors of patterns in PostgreSQL, searched exactly with pgvector.

The patterns of one tenant and tier are all compared. An approximate index with a filter loses
answers: a tenant with a hundredth of 100,000 patterns gets three in ten of its nearest ones."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any

from gateway.stores.patterns import Search, SpaceMismatch, Vector
from gateway.stores.sql.engine import Connection, Engine, Row, conditions, row_of
from gateway.stores.sql.patterns import COLUMNS

_OPEN = """
INSERT INTO pattern_spaces (embedder_id, dimensions) VALUES (:embedder_id, :dimensions)
ON CONFLICT (embedder_id) DO NOTHING
"""
_SPACE = "SELECT number, dimensions FROM pattern_spaces WHERE embedder_id = :embedder_id"
_PUT = """
INSERT INTO pattern_vectors (space, pk, tenant, tier, vector)
SELECT :space, p.pk, p.tenant, p.tier, :vector::float4[]::vector FROM patterns AS p
WHERE p.pk = :pk
ON CONFLICT (space, pk) DO UPDATE
SET tenant = excluded.tenant, tier = excluded.tier, vector = excluded.vector
"""
# With `+ 0` no index on the vectors fits, whatever the planner estimates. The vector is read from
# its array once, not for each row; only the nearest are joined with their wide rows.
_NEAREST = f"""
SELECT {COLUMNS}, 1 - v.distance FROM (
    SELECT pk, (vector <=> (SELECT :vector::float4[]::vector)) + 0 AS distance
    FROM pattern_vectors WHERE space = :space AND tenant = :tenant AND tier = :tier{{narrowed}}
    ORDER BY distance, pk LIMIT :limit
) AS v JOIN patterns AS p USING (pk)
WHERE v.distance <= 1 - :floor::float8 ORDER BY v.distance, p.pk
"""
_SUITABLE = " AND pk IN (SELECT p.pk FROM patterns AS p WHERE {conditions})"
_UNFIT = """
DELETE FROM pattern_vectors AS v WHERE v.space = :space AND (
    vector_dims(v.vector) <> :dimensions
    OR NOT EXISTS (SELECT 1 FROM patterns AS p WHERE p.pk = v.pk)
)
"""


class PostgresVectors:
    """`VectorIndex` in the table of all spaces."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._space = 0
        self.dimensions: int | None = None
        self.searching: AbstractAsyncContextManager[Any] = nullcontext()

    @property
    def joined(self) -> str:
        return f"LEFT JOIN pattern_vectors AS v ON v.space = {self._space} AND v.pk = p.pk"

    async def open(self, embedder_id: str, dimensions: int) -> None:
        async def work(connection: Connection) -> Row:
            await connection.fetch(_OPEN, embedder_id=embedder_id, dimensions=dimensions)
            return (await connection.fetch(_SPACE, embedder_id=embedder_id))[0]

        number, known = await self._engine.read(work)
        if known != dimensions:
            raise SpaceMismatch(
                f"the embedder {embedder_id!r} had {known} dimensions and has {dimensions} now"
            )
        self._space, self.dimensions = number, dimensions

    async def put(self, pk: int, vector: Vector[float], connection: Connection) -> None:
        await connection.fetch(_PUT, space=self._space, pk=pk, vector=vector)

    async def forget(self, pk: int, connection: Connection) -> None:
        await connection.fetch("DELETE FROM pattern_vectors WHERE pk = :pk", pk=pk)

    async def nearest(
        self, search: Search, families: Sequence[str] | None, connection: Connection
    ) -> list[tuple[Row, float]]:
        bound = row_of(search, ("vector", "floor", "limit"))
        bound |= {"space": self._space, "tenant": search.scope, "tier": search.tier.value}
        wanted = {
            "failure_type": ("p.failure_type IN ('', :failure_type)", search.failure_type or None),
            "families": ("p.model_family = ANY(:families::text[])", families),
        }
        suitable = conditions(wanted, bound)
        narrowed = "" if suitable == "TRUE" else _SUITABLE.format(conditions=suitable)
        found = await connection.fetch(_NEAREST.format(narrowed=narrowed), **bound)
        return [(row[:-1], row[-1]) for row in found]

    async def rebuild(self) -> None:
        """Vectors that fit no pattern, or are of a wrong size, are removed: there is no index."""
        await self._engine.write(_UNFIT, space=self._space, dimensions=self.dimensions)
