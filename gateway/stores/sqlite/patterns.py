"""Patterns in SQLite."""

# ruff: noqa: S608 - statements are put together from names of this package; values are bound

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from typing import Any

import apsw

from gateway.steering.guidance.pattern import Pattern, PatternMatch, content_id, with_id
from gateway.stores.pattern_codec import COLUMNS, pattern_of
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
from gateway.stores.protocols import StoreCorrupt, StoreError, StoreUnavailable
from gateway.stores.sqlite import pattern_rows as rows
from gateway.stores.sqlite.database import Database
from gateway.stores.sqlite.pattern_index import VectorSpace


class SQLitePatternStore:
    """A PatternStore in a Database whose connections have loaded sqlite-vec."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._space: VectorSpace | None = None
        # A search only uses CPU. One per core would leave none for the event loop, one per reader
        # thread none for other queries.
        spare = min(database.reader_threads, os.cpu_count() or 1) - 1
        self._searching = asyncio.Semaphore(max(1, spare))

    async def open_space(self, embedder_id: str, dimensions: int) -> int:
        """See PatternStore.

        Raises: StoreCorrupt when the index is damaged; the space is open nevertheless, so that
        `rebuild` can repair it.
        """

        def find(connection: apsw.Connection) -> VectorSpace | None:
            space = _known_space(connection, embedder_id, dimensions)
            return space if space is not None and space.exists(connection) else None

        def create(connection: apsw.Connection) -> VectorSpace:
            space = _space(connection, embedder_id, dimensions)
            space.create(connection)
            return space

        # One that exists is opened while another process holds the write lock.
        known = await self._database.read(find)
        space = known if known is not None else await self._database.write(create)
        self._space = space
        try:
            await self._database.read(space.check)
            return int(await self._database.read(space.lacking))
        except StoreUnavailable:
            raise
        except StoreError as error:
            raise StoreCorrupt(
                "the vector index of the patterns is damaged; `gateway patterns reindex` rebuilds "
                f"it ({error})"
            ) from error

    async def add(
        self, entries: Sequence[tuple[Pattern, Vector[float] | None]]
    ) -> list[tuple[Added, str]]:
        """See PatternStore."""
        space = self._checked(*(vector for _, vector in entries))

        def work(connection: apsw.Connection) -> list[tuple[Added, str]]:
            now = space.current(connection)
            return [rows.add(connection, now, with_id(each), vector) for each, vector in entries]

        return await self._database.write(work)

    async def edit(self, pattern: Pattern, vector: Vector[float] | None) -> None:
        """See PatternStore."""
        space = self._checked(vector)

        def work(connection: apsw.Connection) -> None:
            known = connection.execute(
                "SELECT pk FROM patterns WHERE tenant = ? AND pattern_id = ?",
                (pattern.tenant, pattern.pattern_id),
            ).fetchone()
            if known is None:
                raise PatternConflict(f"there is no pattern {pattern.pattern_id!r}")
            same = rows.same_content(connection, pattern)
            if same is not None and same[0] != known[0]:
                raise PatternConflict(f"pattern {same[1]!r} has the same content")
            rows.replace(connection, space.current(connection), known[0], pattern, vector)

        await self._database.write(work)

    async def get(self, tenant: str | None, pattern_id: str) -> StoredPattern | None:
        """See PatternStore."""
        space = self._checked()

        def work(connection: apsw.Connection) -> StoredPattern | None:
            pk = rows.find(connection, tenant, pattern_id)
            found = rows.select(connection, space, "p.pk = ?", (pk,), 1)
            return found[0][1] if found else None

        return await self._database.read(work)

    async def delete(self, tenant: str | None, pattern_id: str) -> bool:
        """See PatternStore."""
        space = self._checked()

        def work(connection: apsw.Connection) -> bool:
            pk = rows.find(connection, tenant, pattern_id)
            if pk is None:
                return False
            rows.remove(connection, space.current(connection), pk)
            return True

        return await self._database.write(work)

    async def list_patterns(
        self, patterns: PatternFilter, *, limit: int = 50, cursor: str | None = None
    ) -> PatternPage:
        """See PatternStore."""
        check_limit(limit)
        space = self._checked()
        condition, values = rows.where(patterns, decode_cursor(cursor))
        found = await self._database.read(
            lambda connection: rows.select(connection, space, condition, values, limit + 1)
        )
        page = found[:limit]
        more = str(page[-1][0]) if len(found) > limit else None
        return PatternPage(patterns=tuple(stored for _, stored in page), next_cursor=more)

    async def search(self, search: Search) -> list[PatternMatch]:
        """See PatternStore."""
        space = self._checked(search.vector)
        if not any(search.vector):
            return []  # a text without a known word is similar to nothing

        def work(connection: apsw.Connection) -> list[PatternMatch]:
            nearest = space.current(connection).search(
                connection,
                search.vector,
                scope=(search.scope, search.tier.value),
                failure_type=search.failure_type,
                families=rows.suitable_families(connection, search.model),
                limit=search.limit,
                floor=search.floor,
            )
            statement = f"SELECT {COLUMNS} FROM patterns AS p WHERE pk = ?"
            return [
                PatternMatch(pattern=pattern_of(row), similarity=similarity)
                for pk, similarity in nearest
                for row in connection.execute(statement, (pk,))
            ]

        async with self._searching:
            return await self._database.read(work)

    async def universal(self, *, model: str = "", limit: int = 32) -> list[PatternMatch]:
        """See PatternStore."""

        def work(connection: apsw.Connection) -> list[PatternMatch]:
            families = rows.suitable_families(connection, model)
            allowed = ", ".join("?" * len(families or ()))
            only = "" if families is None else f"AND model_family IN ({allowed}) "
            found = connection.execute(
                f"SELECT {COLUMNS} FROM patterns AS p WHERE tier = 'e3' {only}"
                "ORDER BY pattern_id LIMIT ?",
                (*(families or ()), limit),
            )
            return [PatternMatch(pattern=pattern_of(row), similarity=1.0) for row in found]

        return await self._database.read(work)

    async def record(
        self, tenant: str, pattern_ids: Sequence[str], event: Event, by: int = 1
    ) -> None:
        """See PatternStore."""
        column = event.value
        statement = f"UPDATE patterns SET {column} = max(0, {column} + ?) WHERE pk = ?"

        def work(connection: apsw.Connection) -> None:
            for pattern_id in pattern_ids:
                pk = rows.find(connection, tenant, pattern_id)
                connection.execute(statement, (by, pk))

        await self._database.write(work)

    async def without_vector(self, limit: int) -> list[Pattern]:
        """See PatternStore."""
        space = self._checked()

        def work(connection: apsw.Connection) -> list[Pattern]:
            found = connection.execute(
                f"SELECT {COLUMNS} FROM patterns AS p WHERE p.tier <> 'e3' AND p.origin = '' "
                f"AND NOT EXISTS (SELECT 1 FROM {space.vectors} AS v WHERE v.pk = p.pk) "
                "ORDER BY p.pk LIMIT ?",
                (limit,),
            )
            return [pattern_of(row) for row in found]

        return await self._database.read(work)

    async def set_vectors(self, entries: Sequence[tuple[Pattern, Vector[float]]]) -> None:
        """See PatternStore."""
        space = self._checked(*(vector for _, vector in entries))

        def work(connection: apsw.Connection) -> None:
            now = space.current(connection)
            for pattern, vector in entries:
                # Skips a pattern that was edited or removed while its vector was computed.
                row: Any = connection.execute(
                    "SELECT pk FROM patterns WHERE tenant = ? AND pattern_id = ? AND digest = ?",
                    (pattern.tenant, pattern.pattern_id, content_id(pattern)),
                ).fetchone()
                if row is not None:
                    now.put(connection, row[0], vector)

        await self._database.write(work)

    async def rebuild(self) -> None:
        """See PatternStore."""
        space = self._checked()

        self._space = await self._database.write(space.rebuilt)

    async def count(self) -> int:
        """See PatternStore."""

        def work(connection: apsw.Connection) -> int:
            row: Any = connection.execute("SELECT count(*) FROM patterns").fetchone()
            return int(row[0])

        return await self._database.read(work)

    def _checked(self, *vectors: Vector[float] | None) -> VectorSpace:
        """The open space, after a check of the vectors' dimensions. Raises: SpaceMismatch."""
        if self._space is None:
            raise SpaceMismatch("no vector space is open")
        check_dimensions(self._space.dimensions, vectors)
        return self._space


def _space(connection: apsw.Connection, embedder_id: str, dimensions: int) -> VectorSpace:
    """The embedder's space, created when there is none. Raises: SpaceMismatch."""
    connection.execute(
        "INSERT INTO pattern_spaces (embedder_id, dimensions) VALUES (?, ?) "
        "ON CONFLICT (embedder_id) DO NOTHING",
        (embedder_id, dimensions),
    )
    found = _known_space(connection, embedder_id, dimensions)
    assert found is not None
    return found


def _known_space(
    connection: apsw.Connection, embedder_id: str, dimensions: int
) -> VectorSpace | None:
    """The embedder's space; None when there is none. Raises: SpaceMismatch."""
    row: Any = connection.execute(
        "SELECT number, dimensions, generation FROM pattern_spaces WHERE embedder_id = ?",
        (embedder_id,),
    ).fetchone()
    if row is None:
        return None
    number, known, generation = row
    if known != dimensions:
        raise SpaceMismatch(
            f"the embedder {embedder_id!r} had {known} dimensions and has {dimensions} now"
        )
    return VectorSpace(number, dimensions, generation)
