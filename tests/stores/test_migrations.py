"""The schema: created once, migrated from every earlier version, never back."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import re
import shutil
import stat
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import apsw
import pytest
import structlog

from gateway.config import LoggingSettings
from gateway.config.storage import StorageSettings
from gateway.observability.logging import configure_logging
from gateway.stores.filters import RunFilter
from gateway.stores.lists import PageRequest
from gateway.stores.protocols import SchemaMismatch, StoreError
from gateway.stores.sql.learning import LearningStore
from gateway.stores.sql.migrations import Migration
from gateway.stores.sql.runs import RunStore
from gateway.stores.sql.states import BRANCHES, LOAD, SQLStateStore
from gateway.stores.sql.usage import AttributionStore
from gateway.stores.sqlite import engine
from gateway.stores.sqlite.connection import open_writer
from gateway.stores.sqlite.database import MIGRATIONS, Database, applied_to
from gateway.stores.sqlite.engine import (
    _FIND_RUN,
    _UPDATE_CONVERSATION,
    _UPDATE_RUN,
    SQLITE,
    SQLiteEngine,
)
from steering_gateway_testing.patience import ANSWER_S
from steering_gateway_testing.store_conformance import records

FIRST_VERSION = Path(__file__).parent / "fixtures" / "v1.sql"


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "gateway.db")


@pytest.fixture
def oldest(path: str) -> str:
    """A file as the first version wrote it."""
    connection = apsw.Connection(path)
    connection.execute(FIRST_VERSION.read_text())
    connection.close()
    return path


async def _open(path: str, **arguments: Any) -> Database:
    return await Database.open(StorageSettings(path=path), **arguments)


def _schema(connection: apsw.Connection) -> list[Any]:
    sql = "SELECT type, name, sql FROM sqlite_schema WHERE sql IS NOT NULL ORDER BY type, name"
    return connection.execute(sql).fetchall()


async def test_the_first_versions_file_still_works(oldest: str) -> None:
    """A file of the first version opens, returns its data, and stores new calls."""
    database = await _open(oldest)
    states, runs = SQLStateStore(SQLiteEngine(database)), RunStore(SQLiteEngine(database))
    (conversation,) = await states.branches(records.TENANT, "k")
    assert (conversation.version, conversation.state) == (2, b'{"v": 2}')
    heads = await states.find_prefix_hashes(records.TENANT, records.history("task", 5))
    assert [(head.kind, head.position) for head in heads] == [("reply", 3), ("served", 2)]
    trace = await runs.get_run("r1", tenant=records.TENANT)
    assert trace is not None
    fired: dict[str, Any] = {
        "composite": 0.75,
        "fired": ("streak",),
        "evidence": {"streak": "bash x4"},
    }
    assert trace.steps == (
        records.a_first_step(),
        records.a_step(1, state="SLOW", failure_type="loop", **fired),
    )
    assert trace.injections == (records.an_injection(),)
    call = records.a_call(
        conversation=records.a_conversation(version=2), steps=(records.a_step(2),)
    )
    assert await states.commit(call) == 3
    assert (await runs.health_summary(RunFilter())).total_steps == 2
    await database.close()


async def test_an_old_file_becomes_like_a_new_one(oldest: str, tmp_path: Path) -> None:
    """A migrated file and a new one have the same tables and indexes."""
    databases = [await _open(path) for path in (oldest, str(tmp_path / "new.db"))]
    old, new = [await database.read(_schema) for database in databases]
    assert old == new
    for database in databases:
        assert await database.read(applied_to) == {migration.name for migration in MIGRATIONS}
        await database.close()


async def test_evidence_of_before_gets_the_key_of_its_run(path: str) -> None:
    """Evidence that was stored without the name of a gateway key gets that of its run, if any."""
    known = [m for m in MIGRATIONS if m.name != "learning_002_keys_of_evidence"]
    database = await _open(path, migrations=known)
    states = SQLStateStore(SQLiteEngine(database))
    await states.commit(records.one_run(1, key_name="web"))
    columns = "tenant, pattern_id, run_id, step_index, kind, conversation, task, at"

    def before(connection: apsw.Connection) -> None:
        for run in ("r0001", "gone"):
            values = (records.TENANT, "e1-a", run, 2, "fix", "c", "t", records.START)
            sql = f"INSERT INTO pattern_evidence ({columns}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
            connection.execute(sql, values)

    await database.write(before)
    await database.close()
    database = await _open(path)
    found = await LearningStore(SQLiteEngine(database)).evidence(records.TENANT, "e1-a")
    assert {row.run_id: row.key_name for row in found} == {"r0001": "web", "gone": ""}
    await database.close()


async def test_a_newer_file_is_refused(path: str) -> None:
    """A file with a migration of a later version is refused by its name, and not changed."""
    later = Migration(name="core_999_later", sql="CREATE TABLE later (x)")
    await (await _open(path, migrations=(*MIGRATIONS, later))).close()
    with pytest.raises(SchemaMismatch, match=r"newer version.*core_999_later"):
        await _open(path)
    reopened = await _open(path, migrations=(*MIGRATIONS, later))
    assert ("table", "later", "CREATE TABLE later (x)") in await reopened.read(_schema)
    await reopened.close()


def test_a_new_file_can_be_opened_by_many_at_once(tmp_path: Path) -> None:
    """SQLite does not wait while others change a new file's journal: 8 of 300 such openings failed
    with "database is locked"."""

    def open_one(number: int) -> None:
        started.wait()
        open_writer(StorageSettings(path=str(tmp_path / f"{number}.db")), ()).close()

    started = threading.Barrier(4)
    with ThreadPoolExecutor(4) as threads:
        for number in range(100):
            list(threads.map(open_one, [number] * 4))


async def test_each_migration_is_applied_once(path: str) -> None:
    """Opening again, and opening twice at once, applies every migration a single time."""

    def counted(name: str) -> Migration:
        sql = f"CREATE TABLE IF NOT EXISTS applied (name); INSERT INTO applied VALUES ('{name}')"
        return Migration(name=name, sql=sql)

    migrations = (*MIGRATIONS, counted("a"), counted("b"))
    databases = await asyncio.gather(*(_open(path, migrations=migrations) for _ in range(4)))
    for database in databases:
        await database.close()
    migrations = (*migrations, counted("c"))
    database = await _open(path, migrations=migrations)
    applied = await database.read(lambda c: c.execute("SELECT name FROM applied").fetchall())
    assert applied == [("a",), ("b",), ("c",)]
    await database.close()


def test_two_gateways_can_create_one_file(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two gateways that create the same file at the same time both open it, one after the other."""
    settings = StorageSettings(path=path)
    others: list[Future[None]] = []

    def open_too() -> None:
        with contextlib.closing(open_writer(settings, ())) as other:
            other.execute("CREATE TABLE made (x)")

    def overtaken(connection: apsw.Connection) -> None:
        statements = itertools.count()

        def before(*_statement: Any) -> bool:
            if next(statements) == 1:
                monkeypatch.undo()
                others.append(threads.submit(open_too))
            return True

        connection.exec_trace = before

    monkeypatch.setattr(apsw, "connection_hooks", [overtaken])
    with (
        ThreadPoolExecutor() as threads,
        contextlib.closing(open_writer(settings, ())) as late,
    ):
        others[0].result(timeout=ANSWER_S)
        assert ("table", "made", "CREATE TABLE made (x)") in _schema(late)


async def test_a_failed_migration_is_rolled_back(path: str) -> None:
    """When a migration fails, the file is unchanged, and a corrected migration works."""
    broken = Migration(name="new", sql="CREATE TABLE half (x); SELECT halfway")
    with pytest.raises(StoreError, match="halfway"):
        await _open(path, migrations=(*MIGRATIONS, broken))
    database = await _open(path)
    assert not [row for row in await database.read(_schema) if row[1] == "half"]
    await database.close()
    repaired = Migration(name="new", sql="CREATE TABLE half (x)")
    await (await _open(path, migrations=(*MIGRATIONS, repaired))).close()


async def _runs(path: str, **arguments: Any) -> set[str]:
    """The ids of the runs in a file, which is opened for that."""
    database = await _open(path, **arguments)
    rows = await database.read(lambda c: c.execute("SELECT id FROM runs").fetchall())
    await database.close()
    return {str(name) for (name,) in rows}


@pytest.fixture
async def of_version_before(path: str) -> str:
    """A file with a run, as the version before the last change wrote it."""
    database = await _open(path, migrations=MIGRATIONS[:-1])
    await SQLStateStore(SQLiteEngine(database)).commit(records.one_run(1))
    await database.close()
    return path


async def test_the_version_before_goes_on_with_the_copy(of_version_before: str) -> None:
    """It refuses the migrated file; the copy, put in its place, has everything of before, also what
    was only in the log when the new version came. One copy is kept, which only its owner reads."""
    path = of_version_before
    before = await _open(path, migrations=MIGRATIONS[:-1])  # as a killed gateway would leave it
    await SQLStateStore(SQLiteEngine(before)).commit(records.one_run(2))
    configure_logging(LoggingSettings())
    with structlog.testing.capture_logs() as logs:
        after = await _open(path)
    await SQLStateStore(SQLiteEngine(after)).commit(records.one_run(3))
    for database in (before, after):
        await database.close()
    number = len(MIGRATIONS)
    copy = f"{path}.before-{number}"
    (said,) = [each for each in logs if "changed for this version" in each["event"]]
    facts = (said["from_form"], said["to_form"], said["changes"], said["copy"])
    assert facts == (number - 1, number, [MIGRATIONS[-1].name], copy)
    assert stat.S_IMODE(os.stat(copy).st_mode) == 0o600
    assert set(os.listdir(Path(path).parent)) == {"gateway.db", os.path.basename(copy)}
    with pytest.raises(SchemaMismatch):
        await _runs(path, migrations=MIGRATIONS[:-1])
    os.rename(copy, path)
    assert await _runs(path, migrations=MIGRATIONS[:-1]) == {"r0001", "r0002"}
    assert await _runs(path) == {"r0001", "r0002"}


async def test_several_processes_migrate_and_copy_once(of_version_before: str) -> None:
    """The others wait until the one is done, and then find nothing to do."""
    configure_logging(LoggingSettings())
    with structlog.testing.capture_logs() as logs:
        opened = await asyncio.gather(*(_open(of_version_before) for _ in range(4)))
    for database in opened:
        await database.close()
    assert len([each for each in logs if "changed for this version" in each["event"]]) == 1
    assert await _runs(f"{of_version_before}.before-{len(MIGRATIONS)}") == {"r0001"}


async def test_without_room_for_the_copy_nothing_is_changed(
    of_version_before: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names what is missing and the setting; with it the file is migrated all the
    same."""
    no_room = shutil._ntuple_diskusage(total=9, used=9, free=0)
    monkeypatch.setattr(shutil, "disk_usage", lambda _folder: no_room)
    with pytest.raises(StoreError, match=r"and 0 are free; nothing.*copy_before_changes"):
        await _open(of_version_before)
    assert await _runs(of_version_before, migrations=MIGRATIONS[:-1]) == {"r0001"}
    settings = StorageSettings(path=of_version_before, copy_before_changes=False)
    await (await Database.open(settings)).close()
    assert await _runs(of_version_before) == {"r0001"}
    assert os.listdir(Path(of_version_before).parent) == ["gateway.db"]


async def test_a_disk_that_fills_during_the_copy_changes_nothing(
    of_version_before: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And leaves no part of a copy."""

    def limited(connection: apsw.Connection) -> None:
        connection.pragma("max_page_count", 1)

    monkeypatch.setattr(apsw, "connection_hooks", [limited])
    with pytest.raises(StoreError, match="full"):
        await _open(of_version_before)
    monkeypatch.undo()
    assert await _runs(of_version_before, migrations=MIGRATIONS[:-1]) == {"r0001"}
    assert os.listdir(Path(of_version_before).parent) == ["gateway.db"]


async def test_a_new_file_is_not_copied(path: str) -> None:
    """Nor one that lacks nothing."""
    for _ in range(2):
        await (await _open(path)).close()
    assert os.listdir(Path(path).parent) == ["gateway.db"]


async def test_changes_are_made_together(path: str) -> None:
    """When the second of two fails, the first is not made: the copy has the form before."""
    await (await _open(path)).close()
    broken = [
        Migration(name="first", sql="CREATE TABLE made (x)"),
        Migration(name="second", sql="SELECT halfway"),
    ]
    with pytest.raises(StoreError, match="halfway"):
        await _open(path, migrations=(*MIGRATIONS, *broken))
    await (await _open(path)).close()


def test_migration_names_are_unique() -> None:
    """No two migrations share a name."""
    names = [migration.name for migration in MIGRATIONS]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    "statement",
    [SQLITE.find_heads, LOAD, BRANCHES, _FIND_RUN, _UPDATE_CONVERSATION, _UPDATE_RUN],
    ids=["heads", "load", "branches", "run", "save conversation", "save run"],
)
async def test_no_request_scans_a_table(statement: str, database: Database) -> None:
    """Every query of a request uses an index."""

    def plan(connection: apsw.Connection) -> list[str]:
        named = dict.fromkeys(re.findall(r":(\w+)", statement))
        if "digests" in named:
            named["digests"] = apsw.carray((b"x",))
        values = named or [None] * statement.count("?")
        rows = connection.execute(f"EXPLAIN QUERY PLAN {statement}", values)
        return [row[-1] for row in rows]

    steps = await database.write(plan)
    assert not [step for step in steps if step.startswith("SCAN") and "d VIRTUAL" not in step]


@pytest.mark.parametrize("tenant", [None, records.TENANT])
async def test_the_newest_runs_are_read_in_order(tenant: str | None, database: Database) -> None:
    """The list of runs is read in the order of an index, without sorting all runs."""
    seen: list[str] = []

    def explain(connection: apsw.Connection) -> list[Any]:
        where = "r.tenant = ?" if tenant else "TRUE"
        sql = f"""
            SELECT r.id FROM runs AS r JOIN conversations AS c ON c.pk = r.conversation_pk
            WHERE {where} AND (r.started_at, r.id) < (?, ?)
            ORDER BY r.started_at DESC, r.id DESC LIMIT 51
        """
        values = (*([tenant] if tenant else []), records.START, "r")
        return connection.execute(f"EXPLAIN QUERY PLAN {sql}", values).fetchall()

    seen = [row[-1] for row in await database.read(explain)]
    assert not [step for step in seen if "TEMP B-TREE" in step]
    assert "runs_by_" in seen[0]


def _plans(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The steps of all plans from now on."""
    plans: list[str] = []
    plain = engine._rows

    def explained(statement: str, values: Any, connection: apsw.Connection) -> Any:
        rows = connection.execute(f"EXPLAIN QUERY PLAN {statement}", values)
        plans.extend(row[-1] for row in rows)
        return plain(statement, values, connection)

    monkeypatch.setattr(engine, "_rows", explained)
    return plans


@pytest.mark.parametrize("stopped", [None, "yes", "budget"])
async def test_the_newest_calls_and_what_stopped_are_found_by_an_index(
    stopped: str | None, of_version_before: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pages and alerts look for both every few seconds: they read no other run, also in a file of
    the version before."""
    database = await _open(of_version_before)
    plans = _plans(monkeypatch)
    wanted = RunFilter(mode="live", stopped=stopped)
    await RunStore(SQLiteEngine(database)).list_runs(wanted, PageRequest(sort="updated_at"))
    await database.close()
    assert plans
    assert not [step for step in plans if step in ("SCAN r", "SCAN x", "SCAN c")]


async def test_runs_with_estimates_are_found_by_an_index(
    of_version_before: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sums of groups read the counters of no other run, also in a file of the version before."""
    database = await _open(of_version_before)
    plans = _plans(monkeypatch)
    (found,) = await AttributionStore(SQLiteEngine(database)).groups(RunFilter(), "tag:team")
    await database.close()
    assert found.sums.runs == 1
    assert any("USING INDEX runs_with_estimates" in step for step in plans)


async def test_stored_runs_are_found_by_their_words(path: str) -> None:
    """A file of the version before is searched like a new one, also for what changes later."""
    before = [each for each in MIGRATIONS if not each.name.startswith("search_")]
    database = await _open(path, migrations=before)
    await SQLStateStore(SQLiteEngine(database)).commit(
        records.one_run(1, task_preview="Mend the bridge")
    )
    await database.close()
    database = await _open(path)
    engine = SQLiteEngine(database)
    runs = RunStore(engine)
    for words in ("mend bridge", "failing", '"a b"'):
        assert await runs.count_runs(RunFilter(search=words)) == 1, words
    change = "UPDATE steps SET content = replace(content, 'failing', 'flaky')"
    await engine.write(change)
    assert await runs.count_runs(RunFilter(search="flaky")) == 1
    assert await runs.count_runs(RunFilter(search="failing")) == 0
    await engine.write("UPDATE steps SET content = replace(content, 'a b', 'c d')")
    assert await runs.count_runs(RunFilter(search='"c d"')) == 1
    assert await runs.count_runs(RunFilter(search='"a b"')) == 0
    await engine.write("UPDATE steps SET content = replace(content, 'c d', '')")
    assert await runs.count_runs(RunFilter(search='"c d"')) == 0
    await database.close()
