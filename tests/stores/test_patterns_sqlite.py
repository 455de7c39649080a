"""What the pattern store does when its file, its extension or its disk fails, and over time."""

from __future__ import annotations

import asyncio
import sys
import threading
from dataclasses import replace
from pathlib import Path

import apsw
import pytest

from gateway.steering.etrace.pattern import Tier, content_id
from gateway.stores.base import StoreCorrupt, StoreError, StoreFull, StoreUnavailable
from gateway.stores.patterns import PatternFilter, SpaceMismatch
from gateway.stores.settings import StorageSettings
from gateway.stores.sqlite.database import Database
from gateway.stores.sqlite.pattern_index import VectorSpace
from gateway.stores.sqlite.pattern_schema import PATTERN_MIGRATIONS, load_vector_extension
from gateway.stores.sqlite.patterns import SQLitePatternStore
from gateway.stores.sqlite.schema import CORE_MIGRATIONS
from tests.stores.test_patterns import SIZE, drawn, found, open_database, pattern, vector


async def filled(path: Path, count: int = 3) -> None:
    database = await open_database(path)
    store = SQLitePatternStore(database)
    await store.open_space("test", SIZE)
    await store.add([(pattern(f"t{n}"), drawn(n)) for n in range(count)])
    await database.close()


def spoil(path: Path, *statements: str) -> None:
    """Run statements on the file behind the store's back."""
    connection = apsw.Connection(str(path))
    load_vector_extension(connection)
    for statement in statements:
        connection.execute(statement)
    connection.close()


async def test_patterns_and_vectors_survive_a_restart(tmp_path: Path) -> None:
    """Closed and opened again, everything is found as before, nothing needs embedding."""
    await filled(tmp_path / "g.db")
    database = await open_database(tmp_path / "g.db")
    store = SQLitePatternStore(database)
    assert await store.open_space("test", SIZE) == 0
    assert (await found(store, vector=drawn(2), limit=1)) == ["t2"]
    await database.close()


async def test_going_back_to_an_embedder_finds_its_vectors_again(tmp_path: Path) -> None:
    """Each embedder keeps its own vectors; what was added meanwhile lacks them."""
    await filled(tmp_path / "g.db", 2)
    database = await open_database(tmp_path / "g.db")
    store = SQLitePatternStore(database)
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
        await SQLitePatternStore(database).open_space("test", 32)
    await database.close()


@pytest.mark.parametrize("size", [1, 7, 12, 384])
async def test_any_number_of_dimensions_works(tmp_path: Path, size: int) -> None:
    """Also those that do not fill whole bytes of signs."""
    database = await open_database(tmp_path / "g.db")
    store = SQLitePatternStore(database)
    await store.open_space("test", size)
    await store.add([(pattern("a"), vector(1, size=size))])
    (match,) = await store.search(_search(size))
    assert match.similarity == pytest.approx(1.0)
    await database.close()


def _search(size: int):  # type: ignore[no-untyped-def]
    from gateway.stores.patterns import Search

    return Search(tier=Tier.E2, vector=vector(1, size=size), limit=2)


@pytest.mark.parametrize(
    "statements",
    [
        ["DROP TABLE pattern_index_1_1_chunks"],
        ["DROP TABLE pattern_index_1_1_rowids"],
        ["DELETE FROM pattern_index_1_1_rowids WHERE rowid = 2"],
        ["DROP TABLE pattern_index_1_1_vector_chunks00"],
        ["UPDATE pattern_index_1_1_vector_chunks00 SET vectors = x'00'"],
        ["UPDATE pattern_index_1_1_chunks SET validity = x'00', rowids = x'00'"],
    ],
)
async def test_a_damaged_index_is_told_at_the_start_and_can_be_rebuilt(
    tmp_path: Path, statements: list[str]
) -> None:
    """Opening names the damage and the cure; after the cure everything is found again."""
    path = tmp_path / "g.db"
    await filled(path)
    spoil(path, *statements)
    database = await open_database(path)
    store = SQLitePatternStore(database)
    with pytest.raises(StoreCorrupt, match="gateway patterns reindex"):
        await store.open_space("test", SIZE)
    await store.rebuild()
    assert await store.open_space("test", SIZE) == 0
    assert await found(store, vector=drawn(1), limit=1) == ["t1"]
    await database.close()


async def test_vectors_of_a_wrong_size_are_lost_in_a_rebuild(tmp_path: Path) -> None:
    """Such a pattern waits for a new vector instead of spoiling the index."""
    path = tmp_path / "g.db"
    await filled(path)
    spoil(path, "UPDATE pattern_vectors_1 SET vector = x'00' WHERE pk = 2")
    database = await open_database(path)
    store = SQLitePatternStore(database)
    with pytest.raises(StoreCorrupt, match="length"):
        await store.open_space("test", SIZE)
    await store.rebuild()
    assert [each.fields["unlock"] for each in await store.without_vector(9)] == ["t1"]
    assert await found(store, vector=drawn(2), limit=1) == ["t2"]
    await database.close()


@pytest.mark.parametrize("table", ["vector_chunks00", "rowids"])
async def test_damage_while_running_raises_a_store_error_and_spares_the_rest(
    tmp_path: Path, table: str
) -> None:
    """The caller can fail open: look-ups raise StoreError, listing still works."""
    path = tmp_path / "g.db"
    database = await open_database(path)
    store = SQLitePatternStore(database)
    await store.open_space("test", SIZE)
    await store.add([(pattern("a"), vector(1))])
    spoil(path, f"DROP TABLE pattern_index_1_1_{table}")
    attempt = found(store) if table != "rowids" else store.delete("", content_id(pattern("a")))
    with pytest.raises(StoreError):
        await attempt
    assert len((await store.list_patterns(PatternFilter())).patterns) == 1
    await database.close()


async def test_a_missing_extension_is_named_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message names the package and the setting that does without."""
    monkeypatch.setitem(sys.modules, "sqlite_vec", None)
    with pytest.raises(StoreUnavailable, match=r"sqlite-vec.*etraces\.enabled"):
        await open_database(tmp_path / "g.db")


async def test_a_full_disk_refuses_the_write_and_keeps_the_store(tmp_path: Path) -> None:
    """Adding raises StoreFull and stores nothing of it; searches go on."""

    def small(connection: apsw.Connection) -> None:
        load_vector_extension(connection)
        connection.pragma("max_page_count", 80)

    database = await Database.open(
        StorageSettings(path=str(tmp_path / "g.db")),
        migrations=(*CORE_MIGRATIONS, *PATTERN_MIGRATIONS),
        hooks=(small,),
    )
    store = SQLitePatternStore(database)
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
    store = SQLitePatternStore(database)
    await store.open_space("test", SIZE)
    text = "\u20ac" * 64_000
    await store.add([(pattern(text), vector(1))])
    assert await found(store) == [text]
    await database.close()


async def test_before_a_space_is_open_nothing_is_searched(tmp_path: Path) -> None:
    """The error says what is missing."""
    database = await open_database(tmp_path / "g.db")
    with pytest.raises(SpaceMismatch, match="no vector space"):
        await found(SQLitePatternStore(database))
    await database.close()


async def test_an_index_made_anew_by_another_process_is_used_at_once(tmp_path: Path) -> None:
    """A gateway that runs meanwhile finds, adds and deletes as before."""
    path = tmp_path / "g.db"
    await filled(path)
    running, mending = await open_database(path), await open_database(path)
    store, mender = SQLitePatternStore(running), SQLitePatternStore(mending)
    await store.open_space("test", SIZE)
    await mender.open_space("test", SIZE)
    await mender.rebuild()
    await mender.rebuild()
    assert await found(store, vector=drawn(1), limit=1) == ["t1"]
    ((_, pattern_id),) = await store.add([(pattern("new"), vector(1))])
    assert await found(mender, limit=1) == ["new"]
    assert await store.delete("", pattern_id)
    assert await found(mender, limit=1) != ["new"]
    await running.close()
    await mending.close()


async def test_searches_leave_a_reader_to_other_queries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many run and however long they take, the rest of the gateway reads on."""
    database = await open_database(tmp_path / "g.db")
    store = SQLitePatternStore(database)
    await store.open_space("test", SIZE)
    may_end = threading.Event()
    monkeypatch.setattr(VectorSpace, "search", lambda *_, **__: may_end.wait(60) and [])
    searches = [asyncio.ensure_future(found(store)) for _ in range(4)]
    try:
        await asyncio.sleep(0)
        async with asyncio.timeout(30):
            assert await store.count() == 0
    finally:
        may_end.set()
    assert await asyncio.gather(*searches) == [[]] * 4
    await database.close()


@pytest.mark.parametrize("spoilt", ["fields = '{'", "tier = 'e7', failure_type = x'ff'"])
async def test_a_damaged_pattern_is_a_store_error_that_names_it(
    tmp_path: Path, spoilt: str
) -> None:
    """So that its look-up fails open by itself, and nothing else with it."""
    path = tmp_path / "g.db"
    database = await open_database(path)
    store = SQLitePatternStore(database)
    await store.open_space("test", SIZE)
    await store.add([(pattern("a", pattern_id="broken"), vector(1))])
    spoil(path, f"UPDATE patterns SET {spoilt}")
    with pytest.raises(StoreCorrupt, match="'broken' is damaged"):
        await found(store)
    await database.close()


@pytest.mark.parametrize("damaged", [False, True])
async def test_no_embedder_keeps_the_vector_of_a_text_that_is_gone(
    tmp_path: Path, damaged: bool
) -> None:
    """An edited pattern is not found by its old text when another embedder comes back, a deleted
    one leaves nothing behind; a damaged index of that embedder does not stand in the way."""
    path = tmp_path / "g.db"
    await filled(path)
    if damaged:
        spoil(path, "DROP TABLE pattern_index_1_1_rowids")
    database = await open_database(path)
    store = SQLitePatternStore(database)
    await store.open_space("other", 8)
    page = await store.list_patterns(PatternFilter())
    edited, deleted = (stored.pattern for stored in page.patterns[:2])
    await store.edit(replace(edited, fields={"unlock": "new"}), vector(1, size=8))
    assert await store.delete("", deleted.pattern_id)
    if damaged:
        with pytest.raises(StoreCorrupt):
            await store.open_space("test", SIZE)
        await store.rebuild()
    assert await store.open_space("test", SIZE) == (0 if damaged else 1)
    assert len(await found(store, vector=drawn(0), floor=-1.0)) == (2 if damaged else 1)
    await database.close()
