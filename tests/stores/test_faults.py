"""Faults of the disk and of the file: clear errors, and a store that recovers."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import apsw
import pytest
from msgspec.structs import replace

from gateway.config.storage import StorageSettings
from gateway.stores.protocols import (
    SchemaMismatch,
    StoreBusy,
    StoreCorrupt,
    StoreDamaged,
    StoreError,
    StoreFull,
    StoreReadOnly,
    StoreUnavailable,
    StoreUnreachable,
)
from gateway.stores.records import StepContent
from gateway.stores.sql.states import SQLStateStore
from gateway.stores.sqlite.database import Database
from gateway.stores.sqlite.engine import SQLiteEngine
from gateway.stores.sqlite.files import translate
from steering_gateway_testing.store_conformance import records


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "gateway.db"


def _write(path: Path, content: bytes) -> None:
    path.write_bytes(content)


def _is_there(path: Path) -> bool:
    return path.is_file()


def _read(path: Path) -> bytes:
    return path.read_bytes()


def _python(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", script, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


async def _open(path: Path, **settings: object) -> Database:
    return await Database.open(StorageSettings(path=str(path), **settings))  # type: ignore[arg-type]


async def test_a_locked_file_is_busy_and_then_free(path: Path) -> None:
    """While another process holds the lock a commit fails in time; reads and later commits work."""
    database = await _open(path, busy_timeout_ms=50)
    store = SQLStateStore(SQLiteEngine(database))
    await store.commit(records.a_call())
    other = apsw.Connection(str(path))
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreBusy, match=r"gateway\.db.*locked"):
        await store.commit(
            records.a_call(conversation=records.a_conversation("c2"), runs=(), steps=())
        )
    together = await asyncio.gather(
        *(store.commit(records.one_run(number)) for number in range(3)), return_exceptions=True
    )
    assert [type(error) for error in together] == [StoreBusy] * 3
    assert await store.load(records.TENANT, "c1") is not None
    other.execute("ROLLBACK")
    other.close()
    assert await store.commit(records.one_run(1)) == 1
    await database.close()


async def test_a_full_disk_fails_only_what_does_not_fit(path: Path) -> None:
    """A commit without space fails, others do not, and it succeeds once there is space again."""
    database = await _open(path)
    store = SQLStateStore(SQLiteEngine(database))
    await store.commit(records.a_call())
    pages = await database.write(lambda c: c.pragma("page_count"))
    await database.write(lambda c: c.pragma("max_page_count", pages + 10))
    big = records.a_first_step("big", content=StepContent(thought="x" * 500_000))
    calls = [
        records.one_run(1, steps=()),
        records.one_run(2, steps=(big,)),
        records.one_run(3, steps=()),
    ]
    outcomes = await asyncio.gather(*map(store.commit, calls), return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [int, StoreFull, int]
    assert await store.load(records.TENANT, "c0002") is None
    assert await store.load(records.TENANT, "c0003") is not None
    await database.write(lambda c: c.pragma("max_page_count", 10**6))
    assert await store.commit(calls[1]) == 1
    await database.close()


async def test_a_read_only_file_still_answers(path: Path) -> None:
    """When the file cannot be written, commits fail with that reason, and reads still work."""
    opened: list[apsw.Connection] = []
    settings = StorageSettings(path=str(path))
    database = await Database.open(settings, hooks=(opened.append,))
    store = SQLStateStore(SQLiteEngine(database))
    await store.commit(records.a_call())
    opened[0].pragma("query_only", True)
    with pytest.raises(StoreReadOnly, match="read-only"):
        await store.commit(records.one_run(1))
    assert await store.load(records.TENANT, "c1") is not None
    opened[0].pragma("query_only", False)
    assert await store.commit(records.one_run(1)) == 1
    await database.close()


async def test_a_deleted_file_is_noticed(path: Path) -> None:
    """A ping fails after the file of a running gateway was deleted or replaced."""
    database = await _open(path)
    await database.ping()
    os.unlink(path)
    with pytest.raises(StoreUnavailable, match="deleted"):
        await database.ping()
    _write(path, b"")
    with pytest.raises(StoreUnavailable, match="replaced"):
        await database.ping()
    await database.close()


@pytest.mark.parametrize("content", [b"not a database " * 100, b"SQLite format 3\x00" + b"x" * 90])
async def test_a_file_that_is_no_database_is_refused(path: Path, content: bytes) -> None:
    """The error names the file that is no database, and the file is not changed."""
    _write(path, content)
    with pytest.raises(StoreCorrupt, match=r"gateway\.db"):
        await _open(path)
    assert _read(path) == content


async def test_another_applications_database_is_refused(path: Path) -> None:
    """A database with other tables is not taken over."""
    other = apsw.Connection(str(path))
    other.execute("CREATE TABLE theirs (x)")
    other.close()
    with pytest.raises(SchemaMismatch, match="another application"):
        await _open(path)


async def test_an_unusable_path_is_refused(tmp_path: Path) -> None:
    """A directory, or a path through a file, cannot be opened, and the message names it."""
    (tmp_path / "file").write_text("")
    for path in (tmp_path, tmp_path / "file" / "gateway.db"):
        with pytest.raises(StoreUnavailable, match="cannot be opened") as found:
            await _open(path)
        assert "Errno" not in str(found.value)


async def test_a_damaged_page_is_reported_and_survived(path: Path) -> None:
    """Damage in one table fails the operations on it, and then all writes, until the file was
    opened again: that makes a new one."""
    database = await _open(path)
    store = SQLStateStore(SQLiteEngine(database))
    for number in range(50):
        await store.commit(records.one_run(number))
    root = await database.read(
        lambda c: c.execute("SELECT rootpage FROM sqlite_schema WHERE name = 'runs'").get
    )
    await database.close()
    with path.open("r+b") as file:
        file.seek((root - 1) * 4096)
        file.write(os.urandom(4096))
    database = await _open(path)
    store = SQLStateStore(SQLiteEngine(database))
    assert await store.load(records.TENANT, "c0007") is not None
    bare = records.a_call(conversation=records.a_conversation("bare"), runs=(), steps=())
    assert await store.commit(bare) == 1
    for call in (
        records.one_run(99),
        replace(bare, conversation=records.a_conversation("another")),
    ):
        with pytest.raises(StoreDamaged, match="damaged"):
            await store.commit(call)
    assert await store.load(records.TENANT, "bare") is not None
    with pytest.raises(StoreDamaged, match="is checked"):
        await store.reopen()
    name = await store.reopen()
    assert _is_there(path.with_name(name or ""))
    assert await store.load(records.TENANT, "bare") is None
    assert await store.commit(records.one_run(99)) == 1
    await database.close()


async def test_nothing_is_read_while_the_file_is_opened_again(path: Path) -> None:
    """Every operation says so until it is open, and then goes on as before."""
    database = await _open(path)
    reading = database.read(lambda c: c.execute("SELECT 1").get)
    both = asyncio.gather(database.reopen(), reading, return_exceptions=True)
    early = (await asyncio.wait_for(both, 120))[1]
    assert isinstance(early, StoreUnavailable)
    assert "is being opened again" in str(early)
    await database.reopen()
    assert await database.read(lambda c: c.execute("SELECT 1").get) == 1
    await database.close()


_LIMITED = """
import asyncio, resource, signal, sys
from gateway.stores.protocols import StoreError
from gateway.config.storage import StorageSettings
from gateway.stores.sqlite.files import translate
from gateway.stores.sqlite.database import Database
from gateway.stores.sqlite.engine import SQLiteEngine
from gateway.stores.sql.states import SQLStateStore
from steering_gateway_testing.store_conformance.records import one_run

async def main(path):
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    database = await Database.open(StorageSettings(path=path))
    store = SQLStateStore(SQLiteEngine(database))
    await store.commit(one_run(0))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, hard))
    failed = set()
    for number in range(1, 100):
        try:
            await store.commit(one_run(number))
        except StoreError as error:
            failed.add(type(error).__name__)
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    await store.commit(one_run(100))
    await database.close()
    print(*failed)

asyncio.run(main(sys.argv[1]))
"""


async def test_failing_writes_of_the_system_are_survived(path: Path) -> None:
    """Commits fail while the system refuses to write, and succeed again afterwards."""
    child = await asyncio.to_thread(_python, _LIMITED, str(path))
    assert (child.returncode, child.stderr) == (0, "")
    assert child.stdout.split()[0] in {"StoreFull", "StoreUnavailable"}
    database = await _open(path)
    store = SQLStateStore(SQLiteEngine(database))
    assert await store.load(records.TENANT, "c0000") is not None
    assert await store.load(records.TENANT, "c0100") is not None
    assert await database.read(lambda c: c.pragma("integrity_check")) == "ok"
    await database.close()


def test_every_error_has_a_label() -> None:
    """Metric labels are one word each, and no two errors share one."""
    kinds = [StoreError]
    for kind in kinds:
        kinds += kind.__subclasses__()
    mine = {kind: kind.label for kind in kinds if kind.__module__ == "gateway.stores.protocols"}
    # A server that cannot be reached is counted as before it had a type of its own.
    assert mine.pop(StoreUnreachable) == StoreUnavailable.label
    assert len(set(mine.values())) == len(mine) == 12
    assert all(label.isidentifier() for label in mine.values())


@pytest.mark.parametrize(
    ("closed", "says"), [("gateway.db", "may not be written"), ("", "directory that is read-only")]
)
def test_missing_write_permission_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, closed: str, says: str
) -> None:
    """SQLite only says that it cannot open the file. The test sets the result of the permission
    check, because a superuser may write everything."""
    path = tmp_path / "gateway.db"
    path.touch()
    closed_path = tmp_path / closed
    monkeypatch.setattr(os, "access", lambda where, _mode: Path(where) != closed_path)
    error = translate(apsw.CantOpenError("unable to open database file"), str(path))
    assert isinstance(error, StoreReadOnly)
    assert says in str(error)
