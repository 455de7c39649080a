"""The vectors of one space: exact vectors in a table, coarse codes of them in an index.

A search compares coarse codes, three bits per dimension, and ranks the nearest few dozen by their
exact vectors. That is four times as fast as comparing all exact vectors at 100,000 patterns, and
the index can always be rebuilt from the table.
"""

# ruff: noqa: S608 - statements are put together from names of this module; values are bound

from __future__ import annotations

import contextlib
import math
from array import array
from collections.abc import Sequence
from typing import Any

import apsw

from gateway.stores.patterns import Vector
from gateway.stores.protocols import StoreCorrupt

CANDIDATES = 48
"""How many of the nearest by code are compared exactly; each makes a search slower.

Source: `bench/patterns.py`; for recorded queries the exact best two were among the first 32.
"""
SELECTIVE = 4
"""Factor on the candidates when patterns of other model families must be filtered out."""

LEVEL = 0.6
"""The outer two of a dimension's three thresholds, in standard deviations of a random unit vector:
the three bits then separate four ranges of about equal frequency."""

_CHUNK = 512
"""Codes per block of the index; each tenant, tier and failure type has separate blocks."""

_NEAR = (
    "SELECT rowid AS pk FROM {index} WHERE code MATCH vec_quantize_binary(:code) AND k = :k "
    "AND tenant = :tenant AND tier = :tier"
)


class VectorSpace:
    """The SQL statements of one space. `number`, `dimensions`, `generation`: as in its row.

    A rebuilt index is a new generation, because a damaged index cannot always be dropped.
    """

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
        row: Any = connection.execute(
            "SELECT generation FROM pattern_spaces WHERE number = ?", (self.number,)
        ).fetchone()
        if row is None or row[0] == self.generation:
            return self
        return VectorSpace(self.number, self.dimensions, row[0])

    def others(self, connection: apsw.Connection) -> list[VectorSpace]:
        """The spaces of other embedders."""
        found = connection.execute(
            "SELECT number, dimensions, generation FROM pattern_spaces WHERE number <> ?",
            (self.number,),
        )
        return [VectorSpace(*row) for row in found]

    def exists(self, connection: apsw.Connection) -> bool:
        """Whether the tables of the space are there."""
        found = connection.execute(
            "SELECT count(*) FROM sqlite_schema WHERE name IN (?, ?)", (self.vectors, self.index)
        ).get
        return int(found) == 2

    def create(self, connection: apsw.Connection) -> None:
        """Create the tables of the space if they do not exist."""
        bits = 3 * (self.dimensions + self._padding)
        connection.execute(
            f"CREATE TABLE IF NOT EXISTS {self.vectors} (pk INTEGER PRIMARY KEY, vector BLOB)"
        )
        connection.execute(
            f"CREATE VIRTUAL TABLE IF NOT EXISTS {self.index} USING vec0("
            "tenant TEXT PARTITION KEY, tier TEXT PARTITION KEY, failure_type TEXT PARTITION KEY, "
            f"code bit[{bits}], chunk_size={_CHUNK})"
        )

    def rebuilt(self, connection: apsw.Connection) -> VectorSpace:
        """The space with an index rebuilt from its vectors; vectors of a wrong size are removed."""
        old = self.current(connection)
        space = VectorSpace(self.number, self.dimensions, old.generation + 1)
        connection.execute(
            "UPDATE pattern_spaces SET generation = ? WHERE number = ?",
            (space.generation, self.number),
        )
        # A damaged table that cannot be dropped stays, unused.
        with contextlib.suppress(apsw.Error), connection:
            connection.execute(f"DROP TABLE IF EXISTS {old.index}")
        space.create(connection)
        connection.execute(
            f"DELETE FROM {self.vectors} WHERE length(vector) <> ? "
            "OR pk NOT IN (SELECT pk FROM patterns)",
            (4 * self.dimensions,),
        )
        for pk, blob in connection.execute(f"SELECT pk, vector FROM {self.vectors}"):
            vector = array("f")
            vector.frombytes(blob)
            space._index(connection, pk, vector)
        return space

    def check(self, connection: apsw.Connection) -> None:
        """Detect an index that is damaged or lacks vectors. Raises: apsw.Error, StoreCorrupt."""
        # In one statement: another process may be adding patterns.
        row: Any = connection.execute(
            f"SELECT (SELECT count(*) FROM {self.index}), (SELECT count(*) FROM {self.vectors})"
        ).fetchone()
        indexed, there = row
        if indexed != there:
            raise StoreCorrupt(f"it has {indexed} entries for {there} vectors")
        probe = array("f", [1.0] * self.dimensions)
        self.search(connection, probe, scope=("", "e2"), failure_type=None, families=None, limit=1)

    def lacking(self, connection: apsw.Connection) -> int:
        """How many searchable patterns have no vector here."""
        row: Any = connection.execute(
            "SELECT count(*) FROM patterns AS p WHERE p.tier <> 'e3' AND p.origin = '' "
            f"AND NOT EXISTS (SELECT 1 FROM {self.vectors} AS v WHERE v.pk = p.pk)"
        ).fetchone()
        return int(row[0])

    def put(self, connection: apsw.Connection, pk: int, vector: Vector[float]) -> None:
        """Store the vector of pattern `pk`, in place of an earlier one."""
        self.remove(connection, pk)
        self.put_first(connection, pk, vector)

    def put_first(self, connection: apsw.Connection, pk: int, vector: Vector[float]) -> None:
        """Store the vector of pattern `pk`, which has none yet."""
        connection.execute(
            f"INSERT INTO {self.vectors} (pk, vector) VALUES (?, ?)", (pk, vector.tobytes())
        )
        self._index(connection, pk, vector)

    def remove(self, connection: apsw.Connection, pk: int) -> None:
        """Remove the vector of pattern `pk`."""
        connection.execute(f"DELETE FROM {self.vectors} WHERE pk = ?", (pk,))
        # Without this table, which belongs to the index, the extension would crash the process.
        known = connection.execute(f"SELECT 1 FROM {self.index}_rowids WHERE rowid = ?", (pk,))
        if known.fetchone() is not None:
            connection.execute(f"DELETE FROM {self.index} WHERE rowid = ?", (pk,))

    def search(
        self,
        connection: apsw.Connection,
        vector: Vector[float],
        *,
        scope: tuple[str, str],
        failure_type: str | None,
        families: Sequence[str] | None,
        limit: int,
        floor: float = 0.0,
    ) -> list[tuple[int, float]]:
        """Pairs of pattern row and cosine, best first, in the partition `scope` (tenant, tier).

        `families`: the model families allowed, None = all.
        """
        near = _NEAR.format(index=self.index)
        if failure_type:
            near = f"{near} AND failure_type = '' UNION ALL {near} AND failure_type = :failure_type"
        allowed = [f":family{number}" for number in range(len(families or ()))]
        only = "" if families is None else f"AND p.model_family IN ({', '.join(allowed)}) "
        candidates = max(CANDIDATES, 8 * limit) * (1 if families is None else SELECTIVE)
        rows = connection.execute(
            f"WITH near AS ({near}) "
            "SELECT pk, 1.0 - vec_distance_cosine(v.vector, :vector) AS similarity FROM near "
            f"JOIN {self.vectors} AS v USING (pk) JOIN patterns AS p USING (pk) "
            f"WHERE similarity >= :floor {only}ORDER BY similarity DESC, pk LIMIT :limit",
            {
                "code": self._levels(vector),
                "vector": vector.tobytes(),
                "k": candidates,
                "tenant": scope[0],
                "tier": scope[1],
                "failure_type": failure_type,
                "floor": floor,
                "limit": limit,
                **{f"family{number}": name for number, name in enumerate(families or ())},
            },
        )
        return [(pk, max(-1.0, min(1.0, similarity))) for pk, similarity in rows]

    def _index(self, connection: apsw.Connection, pk: int, vector: Vector[float]) -> None:
        connection.execute(
            f"INSERT INTO {self.index} (rowid, tenant, tier, failure_type, code) "
            "SELECT pk, tenant, tier, failure_type, vec_quantize_binary(?) FROM patterns "
            "WHERE pk = ?",
            (self._levels(vector), pk),
        )

    def _levels(self, vector: Vector[float]) -> bytes:
        """The vector minus each of the three thresholds; the signs are the code."""
        level = LEVEL / math.sqrt(self.dimensions)
        padding = [0.0] * self._padding
        above, below = [value - level for value in vector], [value + level for value in vector]
        return array("f", [*vector, *padding, *above, *padding, *below, *padding]).tobytes()
