"""`storage.path: ":memory:"`: SQLite without a file, read and written at the same time."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import apsw
import pytest

from gateway.backends import open_stores
from gateway.config.storage import IN_MEMORY, StorageSettings
from gateway.core.pattern import Tier
from gateway.stores.filters import RunFilter
from gateway.stores.lists import PageRequest
from gateway.stores.patterns import VectorSearch
from gateway.stores.protocols import StoreFull
from gateway.stores.records import StepContent
from gateway.stores.sql.runs import RunStore
from gateway.stores.sql.states import SQLStateStore
from gateway.stores.sqlite import connection as connections
from gateway.stores.sqlite.connection import one_view
from gateway.stores.sqlite.database import Database
from gateway.stores.sqlite.engine import SQLiteEngine
from steering_gateway_testing.store_conformance.records import a_first_step, history, one_run
from steering_gateway_testing.store_conformance.sample_patterns import SIZE, add, drawn, pattern


@asynccontextmanager
async def in_memory(**settings: object) -> AsyncIterator[Database]:
    """An empty database in memory, which fails at once where SQLite would wait for a lock."""
    given = {"path": IN_MEMORY, "busy_timeout_ms": 0} | settings
    database = await Database.open(StorageSettings(**given))  # type: ignore[arg-type]
    yield database
    await database.close()


async def test_readers_and_the_writer_do_not_fail_each_other() -> None:
    """Commits, reads, long reads and searches at the same time: every one of them succeeds."""
    settings = StorageSettings(path=IN_MEMORY, busy_timeout_ms=0, reader_threads=4)
    stores = await open_stores(settings, vectors=True)
    await stores.patterns.open_space("test", SIZE)
    for seed in range(20):
        await add(stores.patterns, pattern(f"t{seed}"), drawn(seed))
    writing = True

    async def reads(number: int) -> int:
        done = 0
        while writing:
            await stores.runs.list_runs(RunFilter(), PageRequest(limit=200))
            await stores.runs.health_summary(RunFilter())
            await stores.runs.get_run(f"r{done % 50:04}", tenant=None)
            await stores.states.find_prefix_hashes("acme", history("h", 5))
            found = await stores.patterns.search(
                VectorSearch(tier=Tier.E2, vector=drawn(number), limit=2, floor=-1.0)
            )
            assert len(found) == 2
            done += 1
        return done

    async def writes(first: int) -> None:
        for number in range(first, first + 100):
            await stores.states.commit(one_run(number))

    readers = [asyncio.ensure_future(reads(number)) for number in range(6)]
    await asyncio.gather(*(writes(first) for first in range(0, 400, 100)))
    writing = False
    assert min(await asyncio.gather(*readers)) > 0
    assert await stores.runs.count_runs(RunFilter()) == 400
    await stores.close()


async def test_a_read_that_fails_half_way_leaves_the_writer_free() -> None:
    """The exception that the caller still holds keeps no statement, and so no lock, open."""
    async with in_memory() as database:
        await database.write(lambda c: c.execute("CREATE TABLE t (x)").fetchall())
        await database.write(lambda c: c.execute("INSERT INTO t VALUES (1), (2)").fetchall())

        def half(connection: apsw.Connection) -> None:
            for _ in connection.execute("SELECT x FROM t"):
                raise ValueError("half way")

        with pytest.raises(ValueError, match="half way") as caught:
            await database.read(one_view(half))
        await database.write(lambda c: c.execute("INSERT INTO t VALUES (3)").fetchall())
        assert caught.value.args


async def test_two_databases_in_one_process_are_separate() -> None:
    """Two gateways in one process share nothing; a closed one leaves nothing to the next."""
    async with in_memory() as one, in_memory() as other:
        assert await SQLStateStore(SQLiteEngine(one)).commit(one_run(1)) == 1
        assert await RunStore(SQLiteEngine(one)).count_runs(RunFilter()) == 1
        assert await RunStore(SQLiteEngine(other)).count_runs(RunFilter()) == 0
    async with in_memory() as later:
        assert await RunStore(SQLiteEngine(later)).count_runs(RunFilter()) == 0


async def test_nothing_reaches_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even while it is open; and a file that happens to have that name does not matter."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / IN_MEMORY).write_text("not a database")
    async with in_memory() as database:
        await SQLStateStore(SQLiteEngine(database)).commit(one_run(1))
        (tmp_path / IN_MEMORY).unlink()
        await database.ping()
        assert os.listdir(tmp_path) == []


async def test_readers_cannot_write() -> None:
    """As in a file: only one thread writes."""
    async with in_memory() as database:
        with pytest.raises(Exception, match="read-only"):
            await database.read(lambda c: c.execute("DELETE FROM runs"))


async def test_it_grows_to_its_limit_and_is_pruned_below_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Beyond the limit a commit is refused and kept out; retention makes room by itself, whatever
    `max_size_mb` says."""
    monkeypatch.setattr(connections, "MEMORY_LIMIT_BYTES", 2 * 2**20)
    monkeypatch.setattr("gateway.stores.sqlite.engine.MEMORY_LIMIT_BYTES", 2 * 2**20)
    async with in_memory() as database:
        states, runs = SQLStateStore(SQLiteEngine(database)), RunStore(SQLiteEngine(database))
        step = a_first_step(content=StepContent(thought="x" * 50_000))
        commits = (states.commit(one_run(number, steps=(step,))) for number in range(60))
        results = [await asyncio.gather(commit, return_exceptions=True) for commit in commits]
        kept = sum(committed == 1 for (committed,) in results)
        assert {type(error) for (error,) in results[kept:]} == {StoreFull}
        assert 20 < kept < 42
        assert await runs.count_runs(RunFilter()) == kept
        report = await runs.prune(max_bytes=10**9)
        assert 0 < report.runs < kept
        assert report.bytes_after <= 3 * 2**19
        assert await states.commit(one_run(kept, steps=(step,))) == 1
