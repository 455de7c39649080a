"""A database's file that other programs use at the same time: what SQLite writes is no damage, in
whatever process, and what is written past SQLite is noticed."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import apsw
import pytest

from gateway.backends import open_stores
from gateway.config.storage import StorageSettings
from gateway.stores.sqlite import database
from gateway.stores.sqlite.connection import open_writer
from gateway.stores.sqlite.files import FileIdentity, LogIndex
from steering_gateway_testing.outages import copy
from steering_gateway_testing.patience import until_async
from steering_gateway_testing.store_conformance.records import one_run
from tests.features.store_outages.test_damage import copy_backup_over, found, is_sound, kept
from tests.features.store_outages.test_guarded import Guarded

# Writes rows, and moves them into the file in the way that is named, so many times.
_PROGRAM = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], timeout=120, isolation_level=None)
connection.execute("PRAGMA wal_autocheckpoint = 0")
connection.execute("CREATE TABLE IF NOT EXISTS notes (id INTEGER PRIMARY KEY, text BLOB)")
for number in range(int(sys.argv[3])):
    connection.execute("INSERT INTO notes (text) VALUES (randomblob(300000))")
    connection.execute("DELETE FROM notes WHERE id < (SELECT max(id) - 20 FROM notes)")
    if sys.argv[2] == "VACUUM":
        connection.execute("VACUUM")
        connection.execute("PRAGMA wal_checkpoint(PASSIVE)")
    else:
        connection.execute(f"PRAGMA wal_checkpoint({sys.argv[2]})")
    print(number, flush=True)
"""
_ENDLESS = 10**9


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "gateway.db"


def settings_of(path: Path) -> StorageSettings:
    return StorageSettings(path=str(path), probe_interval_s=0.02, commit_limit_ms=60_000)


async def opened(path: Path) -> Guarded:
    return Guarded(await open_stores(settings_of(path)), settings_of(path))


@pytest.fixture
async def guarded(path: Path) -> AsyncIterator[Guarded]:
    gateway = await opened(path)
    yield gateway
    await gateway.close()


def command_of(path: Path, how: str, times: int) -> list[str]:
    """What another process runs that moves the log into the file."""
    return [sys.executable, "-c", _PROGRAM, str(path), how, str(times)]


@contextmanager
def another_process(path: Path, how: str, times: int) -> Iterator[subprocess.Popen[str]]:
    """One that has moved something into the file already."""
    with subprocess.Popen(
        command_of(path, how, times), stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "0\n"
        try:
            yield process
        finally:
            process.kill()


async def commit(gateway: Guarded, numbers: list[int]) -> None:
    for number in numbers:
        await gateway.store.commit(one_run(number))


@pytest.mark.parametrize(
    ("how", "processes", "times"),
    [
        ("VACUUM", 1, 8),
        pytest.param("VACUUM", 3, 30, marks=pytest.mark.slow),
        pytest.param("PASSIVE", 3, 200, marks=pytest.mark.slow),
        pytest.param("RESTART", 3, 200, marks=pytest.mark.slow),
        pytest.param("TRUNCATE", 3, 200, marks=pytest.mark.slow),
        pytest.param("PASSIVE", 8, 1000, marks=pytest.mark.nightly),
        pytest.param("TRUNCATE", 8, 1000, marks=pytest.mark.nightly),
    ],
)
async def test_what_other_processes_move_into_the_file(
    guarded: Guarded, path: Path, how: str, processes: int, times: int
) -> None:
    """The store looks at the file again and again while they do, and is never in doubt."""
    with another_process(path, how, times) as first:
        waiting = asyncio.ensure_future(asyncio.to_thread(first.communicate))
        command = command_of(path, how, times)
        others = [asyncio.ensure_future(run(command)) for _ in range(processes - 1)]
        numbers: list[int] = []
        while not waiting.done():
            numbers.append(len(numbers))
            await commit(guarded, numbers[-1:])
            await guarded.stores.states.ping()
        await asyncio.gather(*others)
    assert "damaged" not in guarded.kinds
    await guarded.works_again()
    assert kept(path) == []
    assert await found(guarded, numbers) == len(numbers)


async def test_two_gateways_on_one_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each moves what both wrote, with every tenth page."""
    monkeypatch.setattr(database, "CHECKPOINT_PAGES", 10)
    gateways = [await opened(path), await opened(path)]
    numbers = range(300)
    await asyncio.gather(
        *[commit(gateway, list(numbers[half::2])) for half, gateway in enumerate(gateways)]
    )
    for gateway in gateways:
        await gateway.works_again()
        assert "damaged" not in gateway.kinds
        assert await found(gateway, numbers) == 300
        await gateway.close()
    assert kept(path) == []


# Programs, since closing a file drops all locks that its process has on it.
_COPIES = {
    "cp": ["cp", "{path}", "{copy}"],
    "backup": [
        sys.executable,
        "-c",
        "import sqlite3; sqlite3.connect('{path}').backup(sqlite3.connect('{copy}'))",
    ],
    "VACUUM INTO": [
        sys.executable,
        "-c",
        """import sqlite3; sqlite3.connect('{path}').execute("VACUUM INTO '{copy}'")""",
    ],
}
_RESTORE = """
import sqlite3, sys
target = sqlite3.connect(sys.argv[1], timeout=120)
sqlite3.connect(sys.argv[2]).backup(target)
target.execute("PRAGMA wal_checkpoint(TRUNCATE)")
"""
# The first pages are moved, those behind the limit are not.
_FULL = """
import os, resource, sqlite3, sys
connection = sqlite3.connect(sys.argv[1])
connection.execute("INSERT INTO entries VALUES (randomblob(300000))")
connection.commit()
size = os.stat(sys.argv[1]).st_size + 100_000
resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
try:
    connection.execute("PRAGMA wal_checkpoint(PASSIVE)")
except sqlite3.OperationalError:
    print("failed", flush=True)
    os._exit(0)
"""


async def run(command: list[str]) -> None:
    await asyncio.to_thread(subprocess.run, command, check=True, timeout=120)


async def make_copy(path: Path, how: str) -> Path:
    target = path.parent / "copy.db"
    await run([part.format(path=path, copy=target) for part in _COPIES[how]])
    return target


@pytest.mark.parametrize("how", _COPIES)
async def test_a_copy_is_made(guarded: Guarded, path: Path, how: str) -> None:
    """While the gateway runs; nothing is in doubt."""
    await commit(guarded, list(range(20)))
    await make_copy(path, how)
    await commit(guarded, list(range(20, 40)))
    assert guarded.kinds == []
    assert await found(guarded, range(40)) == 40


async def test_a_backup_is_restored_by_sqlite(guarded: Guarded, path: Path) -> None:
    """As `.restore` of its shell does: within a transaction, so that the file stays sound."""
    await commit(guarded, list(range(20)))
    backup = await make_copy(path, "backup")
    await commit(guarded, list(range(20, 40)))
    await run([sys.executable, "-c", _RESTORE, str(path), str(backup)])
    await commit(guarded, list(range(40, 60)))
    assert guarded.kinds == []
    assert await found(guarded, range(60)) == 40
    assert is_sound(path)


async def test_a_backup_is_copied_over_while_another_process_writes(
    guarded: Guarded, path: Path
) -> None:
    """What is stored afterwards is in a sound file, though checkpoints change it all the time."""
    await commit(guarded, list(range(30)))
    copy(path, path.parent / "backup.db")
    await commit(guarded, list(range(30, 60)))
    with another_process(path, "PASSIVE", _ENDLESS) as process:
        copy_backup_over(path)
        await until_async(lambda: guarded.store.health.damaged)
        process.kill()
    await guarded.works_again()
    await commit(guarded, list(range(100, 120)))
    await guarded.works_again()
    assert await found(guarded, range(100, 120)) == 20
    assert is_sound(path)


@pytest.fixture
def writer(path: Path) -> Iterator[apsw.Connection]:
    with closing(open_writer(settings_of(path), [])) as connection:
        connection.execute("CREATE TABLE entries (text)")
        yield connection


def test_the_disk_is_full_during_a_checkpoint(path: Path, writer: apsw.Connection) -> None:
    """Pages that were moved before it failed are no damage; what comes later is noticed."""
    files = FileIdentity(settings_of(path), writer, "")
    size = path.stat().st_size
    command = [sys.executable, "-c", _FULL, str(path)]
    assert subprocess.check_output(command, timeout=120) == b"failed\n"
    assert path.stat().st_size > size
    assert files.lost() is None
    os.utime(path, (1, 1))
    assert files.lost() is not None


def test_a_checkpoint_fails(path: Path, writer: apsw.Connection) -> None:
    """Before its first page. Others' writes are noticed before it is repeated."""
    with closing(apsw.Connection(str(path))) as other:
        files = FileIdentity(settings_of(path), writer, "")
        for _ in range(3):
            other.execute("INSERT INTO entries VALUES (randomblob(100000))")
            other.interrupt()
            with pytest.raises(apsw.InterruptError):
                other.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
            assert files.lost() is None
        os.utime(path, (1, 1))
        assert files.lost() is not None
        files = FileIdentity(settings_of(path), writer, "")
        other.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
        assert files.lost() is None


@pytest.mark.parametrize("rounds", [2, pytest.param(50, marks=pytest.mark.nightly)])
async def test_a_process_is_killed_during_a_checkpoint(
    path: Path, writer: apsw.Connection, rounds: int
) -> None:
    """Pages that it had moved are no damage; what comes later is noticed."""
    index = LogIndex(writer)
    for _ in range(rounds):
        with another_process(path, "VACUUM", _ENDLESS) as process:
            files = FileIdentity(settings_of(path), writer, "")
            await until_async(lambda: not index.moves())
            process.kill()
            process.wait()
        assert files.lost() is None
        os.utime(path, (1, 1))
        assert files.lost() is not None
    assert writer.execute("PRAGMA integrity_check").get == "ok"


def test_the_log_is_cut_off_twice_between_two_looks(path: Path, writer: apsw.Connection) -> None:
    """The log looks as before then, but the file has changed."""
    with closing(apsw.Connection(str(path))) as other:
        other.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        files = FileIdentity(settings_of(path), writer, "")
        other.execute("INSERT INTO entries VALUES (randomblob(100000))")
        other.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        assert files.lost() is None
        os.utime(path, (1, 1))
        assert files.lost() is not None
