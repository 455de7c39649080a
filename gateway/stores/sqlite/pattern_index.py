"""The vectors of one space: exact vectors in a table, coarse codes of them in an index.

A search compares coarse codes, three bits per dimension, and ranks the nearest few dozen by their
exact vectors. That is four times as fast as comparing all exact vectors at 100,000 patterns, and
the index can always be rebuilt from the table."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import os
from array import array
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

import apsw

from gateway.steering.guidance.pattern import Tier
from gateway.stores.patterns import Search, SpaceMismatch, Vector
from gateway.stores.protocols import StoreCorrupt, StoreError, StoreUnavailable
from gateway.stores.sql.engine import Connection, Row, row_of
from gateway.stores.sql.patterns import COLUMNS
from gateway.stores.sqlite.database import Database

CANDIDATES = 48
"""How many of the nearest by code are compared exactly; each makes a search slower.

Source: `bench/patterns.py`; for recorded queries the exact best two were among the first 32."""
SELECTIVE = 4  # factor on the candidates when patterns of other model families must be filtered out
LEVEL = 0.6
"""The outer two of a dimension's three thresholds, in standard deviations of a random unit vector:
the three bits then separate four ranges of about equal frequency."""

_CHUNK = 512  # codes per block of the index; each tenant, tier and failure type has separate blocks
_NEAR = (
    "SELECT rowid AS pk FROM {index} WHERE code MATCH vec_quantize_binary(:code) AND k = :k "
    "AND tenant = :tenant AND tier = :tier"
)
_SEARCH = """
WITH near AS ({near})
SELECT pk, 1.0 - vec_distance_cosine(v.vector, :vector) AS similarity
FROM near JOIN {vectors} AS v USING (pk) JOIN patterns AS p USING (pk)
WHERE similarity >= :floor AND {only} ORDER BY similarity DESC, pk LIMIT :limit
"""
_INDEX = """
INSERT INTO {index} (rowid, tenant, tier, failure_type, code)
SELECT pk, tenant, tier, failure_type, vec_quantize_binary(?) FROM patterns WHERE pk = ?
"""
_CREATE_INDEX = """
CREATE VIRTUAL TABLE IF NOT EXISTS {index} USING vec0(
    tenant TEXT PARTITION KEY, tier TEXT PARTITION KEY, failure_type TEXT PARTITION KEY,
    code bit[{bits}], chunk_size={chunk}
)
"""
_OPEN = """
INSERT INTO pattern_spaces (embedder_id, dimensions) VALUES (?, ?)
ON CONFLICT (embedder_id) DO NOTHING
"""
_SPACE = "SELECT number, dimensions, generation FROM pattern_spaces WHERE embedder_id = ?"
_OTHERS = "SELECT number, dimensions, generation FROM pattern_spaces WHERE number <> ?"
_EXISTS = "SELECT count(*) FROM sqlite_schema WHERE name IN (?, ?)"
_PATTERN = f"SELECT {COLUMNS} FROM patterns AS p WHERE pk = :pk"


class VectorSpace:
    """The SQL statements of one space. `number`, `dimensions`, `generation`: as in its row. A
    rebuilt index is a new generation, because a damaged index cannot always be dropped."""

    def __init__(self, number: int, dimensions: int, generation: int) -> None:
        self.number = number
        self.dimensions = dimensions
        self.generation = generation
        self.vectors = f"pattern_vectors_{number}"
        self.index = f"pattern_index_{number}_{generation}"
        # The index packs eight bits into a byte.
        self._padding = -dimensions % 8

    def current(self, connection: apsw.Connection) -> VectorSpace:
        """The space as stored now: another process may have rebuilt its index."""
        find = "SELECT generation FROM pattern_spaces WHERE number = ?"
        known: Any = connection.execute(find, (self.number,)).get
        if known in (None, self.generation):
            return self
        return VectorSpace(self.number, self.dimensions, known)

    def create(self, connection: apsw.Connection) -> None:
        """Create the tables of the space if they do not exist."""
        table = f"CREATE TABLE IF NOT EXISTS {self.vectors} (pk INTEGER PRIMARY KEY, vector BLOB)"
        connection.execute(table)
        bits = 3 * (self.dimensions + self._padding)
        connection.execute(_CREATE_INDEX.format(index=self.index, bits=bits, chunk=_CHUNK))

    def rebuilt(self, connection: apsw.Connection) -> VectorSpace:
        """The space with an index rebuilt from its vectors; vectors of a wrong size are removed."""
        old = self.current(connection)
        space = VectorSpace(self.number, self.dimensions, old.generation + 1)
        renew = "UPDATE pattern_spaces SET generation = ? WHERE number = ?"
        connection.execute(renew, (space.generation, self.number))
        # A damaged table that cannot be dropped stays, unused.
        with contextlib.suppress(apsw.Error), connection:
            connection.execute(f"DROP TABLE IF EXISTS {old.index}")
        space.create(connection)
        unfit = "length(vector) <> ? OR pk NOT IN (SELECT pk FROM patterns)"
        connection.execute(f"DELETE FROM {self.vectors} WHERE {unfit}", (4 * self.dimensions,))
        for pk, blob in connection.execute(f"SELECT pk, vector FROM {self.vectors}"):
            space._index(connection, pk, array("f", blob))
        return space

    def check(self, connection: apsw.Connection) -> None:
        """Detect an index that is damaged or lacks vectors. Raises: apsw.Error, StoreCorrupt."""
        # In one statement: another process may be adding patterns.
        counted = f"(SELECT count(*) FROM {self.index}), (SELECT count(*) FROM {self.vectors})"
        counts: Any = connection.execute(f"SELECT {counted}").get
        indexed, there = counts
        if indexed != there:
            raise StoreCorrupt(f"it has {indexed} entries for {there} vectors")
        probe = array("f", [1.0] * self.dimensions)
        self.search(connection, Search(tier=Tier.E2, vector=probe), None)

    def put(self, connection: apsw.Connection, pk: int, vector: Vector[float]) -> None:
        """Store the vector of pattern `pk`, in place of an earlier one."""
        self.remove(connection, pk)
        insert = f"INSERT INTO {self.vectors} (pk, vector) VALUES (?, ?)"
        connection.execute(insert, (pk, vector.tobytes()))
        self._index(connection, pk, vector)

    def remove(self, connection: apsw.Connection, pk: int) -> None:
        """Remove the vector of pattern `pk`."""
        connection.execute(f"DELETE FROM {self.vectors} WHERE pk = ?", (pk,))
        # Without this table, which belongs to the index, the extension would crash the process.
        known = connection.execute(f"SELECT 1 FROM {self.index}_rowids WHERE rowid = ?", (pk,))
        if known.fetchone() is not None:
            connection.execute(f"DELETE FROM {self.index} WHERE rowid = ?", (pk,))

    def search(
        self, connection: apsw.Connection, search: Search, families: Sequence[str] | None
    ) -> list[tuple[int, float]]:
        """Pairs of pattern row and cosine, best first; see VectorIndex.nearest."""
        near, only = _NEAR.format(index=self.index), "TRUE"
        if search.failure_type:
            near = f"{near} AND failure_type = '' UNION ALL {near} AND failure_type = :failure_type"
        candidates = max(CANDIDATES, 8 * search.limit)
        if families is not None:
            only = "p.model_family IN (SELECT value FROM json_each(:families))"
            candidates *= SELECTIVE
        values = {
            **row_of(search, ("failure_type", "floor", "limit")),
            "tenant": search.scope,
            "tier": search.tier.value,
            "k": candidates,
            "code": self._levels(search.vector),
            "vector": search.vector.tobytes(),
            "families": json.dumps(families),
        }
        sql = _SEARCH.format(near=near, vectors=self.vectors, only=only)
        return list(connection.execute(sql, values))

    def _index(self, connection: apsw.Connection, pk: int, vector: Vector[float]) -> None:
        connection.execute(_INDEX.format(index=self.index), (self._levels(vector), pk))

    def _levels(self, vector: Vector[float]) -> bytes:
        """The vector minus each of the three thresholds; the signs are the code."""
        level = LEVEL / math.sqrt(self.dimensions)
        padding = [0.0] * self._padding
        above, below = [value - level for value in vector], [value + level for value in vector]
        return array("f", [*vector, *padding, *above, *padding, *below, *padding]).tobytes()


class SQLiteVectors:
    """`VectorIndex` in a Database whose connections have loaded sqlite-vec."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._space: VectorSpace | None = None
        # A search only uses CPU. One per core would leave none for the event loop, one per reader
        # thread none for other queries.
        spare = min(database.reader_threads, os.cpu_count() or 1) - 1
        self.searching: AbstractAsyncContextManager[Any] = asyncio.Semaphore(max(1, spare))

    @property
    def dimensions(self) -> int | None:
        return self._space.dimensions if self._space is not None else None

    @property
    def joined(self) -> str:
        return f"LEFT JOIN {self._opened.vectors} AS v USING (pk)"

    @property
    def _opened(self) -> VectorSpace:
        assert self._space is not None
        return self._space

    async def open(self, embedder_id: str, dimensions: int) -> None:
        def find(connection: apsw.Connection) -> VectorSpace | None:
            space = _known_space(connection, embedder_id, dimensions)
            if space is None or connection.execute(_EXISTS, (space.vectors, space.index)).get != 2:
                return None
            return space

        def create(connection: apsw.Connection) -> VectorSpace:
            connection.execute(_OPEN, (embedder_id, dimensions))
            space = _known_space(connection, embedder_id, dimensions)
            assert space is not None
            space.create(connection)
            return space

        # One that exists is opened while another process holds the write lock.
        known = await self._database.read(find)
        self._space = known if known is not None else await self._database.write(create)
        try:
            await self._database.read(self._space.check)
        except StoreUnavailable:
            raise
        except StoreError as error:
            raise StoreCorrupt(
                "the vector index of the patterns is damaged; `gateway patterns reindex` rebuilds "
                f"it ({error})"
            ) from error

    async def put(self, pk: int, vector: Vector[float], connection: Connection) -> None:
        self._opened.current(connection.raw).put(connection.raw, pk, vector)

    async def forget(self, pk: int, connection: Connection) -> None:
        space = self._opened.current(connection.raw)
        space.remove(connection.raw, pk)
        for other in connection.raw.execute(_OTHERS, (space.number,)).fetchall():
            # A damaged space is reported, and rebuilt, when its embedder is in use again.
            with contextlib.suppress(apsw.Error), connection.raw:
                VectorSpace(*other).remove(connection.raw, pk)

    async def nearest(
        self, search: Search, families: Sequence[str] | None, connection: Connection
    ) -> list[tuple[Row, float]]:
        space = self._opened.current(connection.raw)
        return [
            (row, similarity)
            for pk, similarity in space.search(connection.raw, search, families)
            for row in await connection.fetch(_PATTERN, pk=pk)
        ]

    async def rebuild(self) -> None:
        self._space = await self._database.write(self._opened.rebuilt)


def _known_space(
    connection: apsw.Connection, embedder_id: str, dimensions: int
) -> VectorSpace | None:
    """The embedder's space; None when there is none. Raises: SpaceMismatch."""
    row: Any = connection.execute(_SPACE, (embedder_id,)).get
    if row is not None and row[1] != dimensions:
        raise SpaceMismatch(
            f"the embedder {embedder_id!r} had {row[1]} dimensions and has {dimensions} now"
        )
    return None if row is None else VectorSpace(*row)
