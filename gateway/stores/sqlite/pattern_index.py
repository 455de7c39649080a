"""The vectors of one space: exact ones in a table, their signs in an index.

A search reads the signs (one bit a dimension, 32 bytes for 256) of the whole partition and takes
the nearest few hundred; their exact vectors decide. At 100,000 patterns that is six times faster
than comparing every vector, and the index can always be rebuilt from the table.
"""

# ruff: noqa: S608 - statements are put together from names of this module; values are bound

from __future__ import annotations

import contextlib
from array import array
from collections.abc import Sequence
from typing import Any

import apsw

from gateway.stores.patterns import Vector

CANDIDATES = 256
"""Nearest by signs whose exact similarity is computed.

Source: `bench/patterns.py`; the exact best one was among them in every query tried.
"""


class VectorSpace:
    """The statements for one space: `number`, `dimensions`, `generation` of its row.

    Each rebuilt index is a new generation, because one that is damaged cannot always be dropped.
    """

    def __init__(self, number: int, dimensions: int, generation: int) -> None:
        self.number = number
        self.dimensions = dimensions
        self.generation = generation
        self.vectors = f"pattern_vectors_{number}"
        self.index = f"pattern_index_{number}_{generation}"
        # The index packs eight signs into a byte.
        self._padding = -dimensions % 8

    def create(self, connection: apsw.Connection) -> None:
        """Make the tables of the space, if they are not there."""
        bits = self.dimensions + self._padding
        connection.execute(
            f"CREATE TABLE IF NOT EXISTS {self.vectors} (pk INTEGER PRIMARY KEY, vector BLOB)"
        )
        connection.execute(
            f"CREATE VIRTUAL TABLE IF NOT EXISTS {self.index} USING vec0("
            "tenant TEXT PARTITION KEY, tier TEXT PARTITION KEY, "
            f"signs bit[{bits}], failure_type TEXT, model_family TEXT)"
        )

    def rebuilt(self, connection: apsw.Connection) -> VectorSpace:
        """The space with an index made anew from its vectors; vectors of a wrong size are lost."""
        connection.execute(
            "UPDATE pattern_spaces SET generation = generation + 1 WHERE number = ?",
            (self.number,),
        )
        # What cannot be dropped stays behind, unused.
        with contextlib.suppress(apsw.Error), connection:
            connection.execute(f"DROP TABLE IF EXISTS {self.index}")
        space = VectorSpace(self.number, self.dimensions, self.generation + 1)
        space.create(connection)
        connection.execute(
            f"DELETE FROM {self.vectors} WHERE length(vector) <> ? "
            "OR pk NOT IN (SELECT pk FROM patterns)",
            (4 * (self.dimensions + self._padding),),
        )
        connection.execute(f"{space._insert} JOIN {self.vectors} AS v USING (pk)")
        return space

    def check(self, connection: apsw.Connection) -> None:
        """Search once, so that a damaged index is noticed. Raises: apsw.Error."""
        probe = array("f", [1.0] * self.dimensions)
        self.search(connection, probe, scope=("", "e2"), failure_type=None, families=[""], limit=1)

    @property
    def _insert(self) -> str:
        return (
            f"INSERT INTO {self.index} (rowid, tenant, tier, signs, failure_type, model_family) "
            "SELECT pk, tenant, tier, vec_quantize_binary(v.vector), failure_type, model_family "
            "FROM patterns"
        )

    def lacking(self, connection: apsw.Connection) -> int:
        """How many patterns that are searched have no vector here."""
        row: Any = connection.execute(
            "SELECT count(*) FROM patterns AS p WHERE p.tier <> 'e3' "
            f"AND NOT EXISTS (SELECT 1 FROM {self.vectors} AS v WHERE v.pk = p.pk)"
        ).fetchone()
        return int(row[0])

    def put(self, connection: apsw.Connection, pk: int, vector: Vector[float]) -> None:
        """Store the vector of pattern `pk`, replacing an earlier one."""
        self.remove(connection, pk)
        blob = self._blob(vector)
        connection.execute(f"INSERT INTO {self.vectors} (pk, vector) VALUES (?, ?)", (pk, blob))
        connection.execute(
            f"{self._insert} JOIN {self.vectors} AS v USING (pk) WHERE pk = ?", (pk,)
        )

    def remove(self, connection: apsw.Connection, pk: int) -> None:
        """Forget the vector of pattern `pk`."""
        connection.execute(f"DELETE FROM {self.vectors} WHERE pk = ?", (pk,))
        connection.execute(f"DELETE FROM {self.index} WHERE rowid = ?", (pk,))

    def search(
        self,
        connection: apsw.Connection,
        vector: Vector[float],
        *,
        scope: tuple[str, str],
        failure_type: str | None,
        families: Sequence[str],
        limit: int,
        floor: float = 0.0,
    ) -> list[tuple[int, float]]:
        """Pairs of pattern and cosine, best first, in the partition `scope` (tenant, tier)."""
        blob = self._blob(vector)
        values: list[object] = [blob, max(CANDIDATES, 8 * limit), *scope]
        only = ""
        if failure_type:
            only += " AND failure_type IN ('', ?)"
            values.append(failure_type)
        only += f" AND model_family IN ({', '.join('?' * len(families))})"
        values += families
        rows = connection.execute(
            f"WITH near AS (SELECT rowid AS pk FROM {self.index} WHERE "
            f"signs MATCH vec_quantize_binary(?) AND k = ? AND tenant = ? AND tier = ?{only}) "
            "SELECT pk, 1.0 - vec_distance_cosine(v.vector, ?) AS similarity "
            f"FROM near JOIN {self.vectors} AS v USING (pk) WHERE similarity >= ? "
            "ORDER BY similarity DESC, pk LIMIT ?",
            (*values, blob, floor, limit),
        )
        return [(pk, max(-1.0, min(1.0, similarity))) for pk, similarity in rows]

    def _blob(self, vector: Vector[float]) -> bytes:
        return vector.tobytes() + bytes(4 * self._padding)
