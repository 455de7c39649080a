"""The pattern store in SQLite: restarts, other embedders, damage, faults."""

from __future__ import annotations

import asyncio
import sys
import threading
from pathlib import Path

import apsw
import pytest
from msgspec.structs import replace

from gateway.config.storage import StorageSettings
from gateway.core.pattern import Tier
from gateway.stores.patterns import PatternFilter, SpaceMismatch
from gateway.stores.protocols import StoreCorrupt, StoreError, StoreFull, StoreUnavailable
from gateway.stores.sql.patterns import PatternStore
from gateway.stores.sqlite.connection import load_vector_extension
from gateway.stores.sqlite.database import Database
from gateway.stores.sqlite.engine import SQLiteEngine
from steering_gateway_testing.store_conformance.sample_patterns import (
    SIZE,
    drawn,
    found,
    pattern,
    vector,
)
from tests.stores.conftest import open_database


async def filled(path: Path, count: int = 3) -> None:
    database = await open_database(path)
    store = PatternStore(SQLiteEngine(database))
    await store.open_space("test", SIZE)
    await store.add([(pattern(f"t{n}"), drawn(n)) for n in range(count)])
    await database.close()


def spoil(path: Path, *statements: str) -> None:
    """Run statements on the file through another connection."""
    connection = apsw.Connection(str(path))
    load_vector_extension(connection)
    for statement in statements:
        connection.execute(statement)
    connection.close()


async def test_patterns_and_vectors_survive_a_restart(tmp_path: Path) -> None:
    """After a restart everything is found as before, and nothing needs embedding."""
    await filled(tmp_path / "g.db")
    database = await open_database(tmp_path / "g.db")
    store = PatternStore(SQLiteEngine(database))
    assert await store.open_space("test", SIZE) == 0
    assert (await found(store, vector=drawn(2), limit=1)) == ["t2"]
    await database.close()


async def test_going_back_to_an_embedder_finds_its_vectors_again(tmp_path: Path) -> None:
    """Each embedder keeps its vectors; patterns added in between lack them."""
    await filled(tmp_path / "g.db", 2)
    database = await open_database(tmp_path / "g.db")
    store = PatternStore(SQLiteEngine(database))
    assert await store.open_space("other", 8) == 2
    await store.add([(pattern("new"), vector(1, size=8))])
    assert await store.open_space("test", SIZE) == 1
    assert [each.fields["unlock"] for each in await store.without_vector(9)] == ["new"]
    await database.close()


async def test_an_embedder_that_changed_its_dimensions_is_refused(tmp_path: Path) -> None:
    """The same id with other dimensions cannot be the same space."""
    await filled(tmp_path / "g.db")
    database = await open_database(tmp_path / "g.db")
    with pytest.raises(SpaceMismatch, match="had 16 dimensions and has 32 now"):
        await PatternStore(SQLiteEngine(database)).open_space("test", 32)
    await database.close()


@pytest.mark.parametrize("size", [1, 7, 12, 384])
async def test_any_number_of_dimensions_works(tmp_path: Path, size: int) -> None:
    """Including numbers that are no power of two."""
    database = await open_database(tmp_path / "g.db")
    store = PatternStore(SQLiteEngine(database))
    await store.open_space("test", size)
    await store.add([(pattern("a"), vector(1, size=size))])
    (match,) = await store.search(_search(size))
    assert match.similarity == pytest.approx(1.0)
    await database.close()


def _search(size: int):
    from gateway.stores.patterns import VectorSearch

    return VectorSearch(tier=Tier.E2, vector=vector(1, size=size), limit=2)


async def test_a_vector_of_a_wrong_size_fails_only_searches(tmp_path: Path) -> None:
    """Searches raise StoreError, so that the caller can fail open; listing still works. Once it is
    removed the pattern lacks a vector, and the others are found."""
    path = tmp_path / "g.db"
    await filled(path)
    spoil(path, "UPDATE pattern_vectors SET vector = x'00' WHERE pk = 2")
    database = await open_database(path)
    store = PatternStore(SQLiteEngine(database))
    await store.open_space("test", SIZE)
    with pytest.raises(StoreError, match=r"dimension|length"):
        await found(store)
    assert len((await store.list_patterns(PatternFilter())).patterns) == 3
    await store.remove_unfit()
    assert [each.fields["unlock"] for each in await store.without_vector(9)] == ["t1"]
    assert await found(store, vector=drawn(2), limit=1) == ["t2"]
    await database.close()


async def test_vectors_of_an_older_file_are_moved(tmp_path: Path) -> None:
    """A file with a table of vectors for each embedder opens; only what does not fit is embedded
    again."""
    path = tmp_path / "g.db"
    await filled(path)
    older = [
        "DELETE FROM migrations WHERE name = 'patterns_002_vectors_in_one_table'",
        "ALTER TABLE pattern_spaces ADD COLUMN generation INTEGER NOT NULL DEFAULT 1",
        "INSERT INTO pattern_spaces (number, embedder_id, dimensions) VALUES (2, 'other', 8)",
    ]
    for number in (1, 2):
        table = f"pattern_vectors_{number}"
        older.append(f"CREATE TABLE {table} (pk INTEGER PRIMARY KEY, vector BLOB)")
        older.append(f"INSERT INTO {table} SELECT pk, vector FROM pattern_vectors")
    spoil(path, *older, "DROP TABLE pattern_vectors")
    database = await open_database(path)
    store = PatternStore(SQLiteEngine(database))
    assert await store.open_space("other", 8) == 3
    assert await store.open_space("test", SIZE) == 0
    assert await found(store, vector=drawn(1), limit=1) == ["t1"]
    await database.close()


async def test_a_missing_extension_is_named_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message names the package, and the setting that makes it unnecessary."""
    monkeypatch.setitem(sys.modules, "sqlite_vec", None)
    with pytest.raises(StoreUnavailable, match=r"sqlite-vec.*etraces\.enabled"):
        await open_database(tmp_path / "g.db")


async def test_a_full_disk_refuses_the_write_and_keeps_the_store(tmp_path: Path) -> None:
    """Adding raises StoreFull and stores nothing; searches still work."""

    def small(connection: apsw.Connection) -> None:
        load_vector_extension(connection)
        connection.pragma("max_page_count", 200)

    database = await Database.open(StorageSettings(path=str(tmp_path / "g.db")), hooks=(small,))
    store = PatternStore(SQLiteEngine(database))
    await store.open_space("test", SIZE)
    await store.add([(pattern("a"), vector(1))])
    with pytest.raises(StoreFull):
        await store.add([(pattern("x" * 60_000 + str(n)), vector(1)) for n in range(9)])
    assert await found(store) == ["a"]
    assert await store.count() == 1
    await database.close()


async def test_a_text_of_the_largest_size_is_kept(tmp_path: Path) -> None:
    """64,000 characters go in and come out."""
    database = await open_database(tmp_path / "g.db")
    store = PatternStore(SQLiteEngine(database))
    await store.open_space("test", SIZE)
    text = "\u20ac" * 64_000
    await store.add([(pattern(text), vector(1))])
    assert await found(store) == [text]
    await database.close()


async def test_before_a_space_is_open_nothing_is_searched(tmp_path: Path) -> None:
    """The error says what is missing."""
    database = await open_database(tmp_path / "g.db")
    with pytest.raises(SpaceMismatch, match="no vector space"):
        await found(PatternStore(SQLiteEngine(database)))
    await database.close()


async def test_searches_leave_a_reader_to_other_queries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any number of long searches leaves a reader thread for other queries."""
    database = await open_database(tmp_path / "g.db")
    store = PatternStore(SQLiteEngine(database))
    await store.open_space("test", SIZE)
    may_end = threading.Event()

    async def waits(*_: object) -> list[object]:
        may_end.wait(120)
        return []

    monkeypatch.setattr(store, "_nearest", waits)
    searches = [asyncio.ensure_future(found(store)) for _ in range(4)]
    try:
        await asyncio.sleep(0)
        async with asyncio.timeout(120):
            assert await store.count() == 0
    finally:
        may_end.set()
    assert await asyncio.gather(*searches) == [[]] * 4
    await database.close()


@pytest.mark.parametrize("spoilt", ["fields = '{'", "tier = 'e7', failure_type = x'ff'"])
async def test_a_damaged_pattern_is_a_store_error_that_names_it(
    tmp_path: Path, spoilt: str
) -> None:
    """So that only its search fails open."""
    path = tmp_path / "g.db"
    database = await open_database(path)
    store = PatternStore(SQLiteEngine(database))
    await store.open_space("test", SIZE)
    await store.add([(pattern("a", pattern_id="broken"), vector(1))])
    spoil(path, f"UPDATE patterns SET {spoilt}")
    with pytest.raises(StoreCorrupt, match="'broken' is damaged"):
        await found(store)
    await database.close()


async def test_no_embedder_keeps_the_vector_of_a_text_that_is_gone(tmp_path: Path) -> None:
    """With an earlier embedder, an edited pattern is not found by its old text and a deleted one
    not at all."""
    path = tmp_path / "g.db"
    await filled(path)
    database = await open_database(path)
    store = PatternStore(SQLiteEngine(database))
    await store.open_space("other", 8)
    page = await store.list_patterns(PatternFilter())
    edited, deleted = (stored.pattern for stored in page.patterns[:2])
    await store.edit(replace(edited, fields={"unlock": "new"}), vector(1, size=8))
    assert await store.delete("", deleted.pattern_id)
    assert await store.open_space("test", SIZE) == 1
    assert len(await found(store, vector=drawn(0), floor=-1.0)) == 1
    await database.close()
