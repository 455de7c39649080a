"""A database's file that somebody copies over, cuts off, empties or fills with other bytes."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path

import apsw
import pytest

from gateway.backends import keep_damaged, open_stores
from gateway.config.storage import StorageSettings
from gateway.stores.protocols import StoreCorrupt
from gateway.stores.sqlite.damage import QUICK, THOROUGH, damage
from gateway.stores.sqlite.files import APPLICATION_ID
from steering_gateway_testing.outages import copy, cut, overwrite
from steering_gateway_testing.patience import until_async
from steering_gateway_testing.store_conformance.records import TENANT, one_run
from tests.features.store_outages.test_guarded import Guarded

BEFORE = range(60)
AFTER = range(100, 160)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "gateway.db"


def settings_of(path: Path) -> StorageSettings:
    return StorageSettings(path=str(path), probe_interval_s=0.02, commit_limit_ms=60_000)


@pytest.fixture
async def guarded(path: Path) -> AsyncIterator[Guarded]:
    found = Guarded(await open_stores(settings_of(path)), settings_of(path))
    yield found
    await found.close()


def copy_backup_over(path: Path) -> None:
    overwrite(path, (path.parent / "backup.db").read_bytes())


def empty(path: Path) -> None:
    os.truncate(path, 0)


def fill_with_text(path: Path) -> None:
    overwrite(path, b"no database " * 5000)


def overwrite_pages(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(os.urandom(path.stat().st_size - 4096))


def drop_tables(path: Path) -> None:
    other = apsw.Connection(str(path))
    other.set_busy_timeout(120_000)
    other.execute("DROP TABLE conversations; DROP TABLE steps")
    other.close()


def delete(path: Path) -> None:
    path.unlink()


def kept(path: Path) -> list[str]:
    return sorted(name for name in os.listdir(path.parent) if ".damaged-" in name)


def is_sound(path: Path) -> bool:
    return not damage(str(path), THOROUGH)


async def commit_all(guarded: Guarded, numbers: Iterable[int]) -> None:
    await asyncio.gather(*[guarded.store.commit(one_run(number)) for number in numbers])


async def found(guarded: Guarded, numbers: Iterable[int]) -> int:
    states = guarded.stores.states
    return sum([await states.load(TENANT, f"c{number:04}") is not None for number in numbers])


async def fill(guarded: Guarded, path: Path) -> None:
    """Records in the file itself, a backup, and more records in the log."""
    await commit_all(guarded, range(30))
    copy(path, path.parent / "backup.db")
    other = apsw.Connection(str(path))
    other.set_busy_timeout(120_000)
    assert other.execute("SELECT count(*) FROM runs").get == 30
    other.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_RESTART)
    other.close()
    await commit_all(guarded, range(30, 60))


HARMS = [copy_backup_over, cut, empty, fill_with_text, overwrite_pages, drop_tables, delete]
WITHOUT_LOG = [copy_backup_over, drop_tables]
"""The file is sound without its log, and is used: what was in it is there."""


@pytest.mark.parametrize("harm", HARMS)
async def test_what_is_answered_after_the_damage_is_in_a_sound_file(
    guarded: Guarded, path: Path, harm: Callable[[Path], None]
) -> None:
    """Calls that are committed from then on, at once and afterwards, can all be read; what was
    damaged is kept under a dated name."""
    await fill(guarded, path)
    harm(path)
    await commit_all(guarded, AFTER[:30])
    await guarded.works_again()
    await until_async(lambda: is_sound(path))
    await commit_all(guarded, AFTER[30:])
    await guarded.works_again()
    assert await found(guarded, AFTER) == 60
    assert is_sound(path)
    names = kept(path)
    # Of the two files that are kept the first one is named.
    assert guarded.store.health.damaged == tuple(names[:1])
    assert bool(names) == (harm not in (delete, empty))
    assert await found(guarded, BEFORE) == (30 if harm in WITHOUT_LOG else 0)


@pytest.mark.parametrize("harm", [cut, fill_with_text, overwrite_pages, copy_backup_over])
async def test_damage_is_noticed_without_a_call(
    guarded: Guarded, path: Path, harm: Callable[[Path], None]
) -> None:
    """By the look every `storage.probe_interval_s`."""
    await fill(guarded, path)
    harm(path)
    await until_async(lambda: guarded.store.health.damaged)
    await guarded.works_again()
    assert is_sound(path)
    assert guarded.store._recovery.breaker.incident is None


@pytest.mark.parametrize("harm", [cut, fill_with_text, overwrite_pages, copy_backup_over])
async def test_a_start_on_a_damaged_file(
    guarded: Guarded, path: Path, harm: Callable[[Path], None]
) -> None:
    """A new file is made before anything is stored; a sound one stays as it is."""
    await fill(guarded, path)
    shutil.copy(path, path.parent / "old.db")
    shutil.copy(f"{path}-wal", path.parent / "old.db-wal")
    await guarded.close()
    settings = settings_of(path.parent / "old.db")
    assert await keep_damaged(settings) == ""
    assert kept(path) == []
    harm(path.parent / "old.db")
    name = await keep_damaged(settings)
    assert name in kept(path)
    stores = await open_stores(settings)
    states = stores.states
    rows = [await states.load(TENANT, f"c{number:04}") for number in BEFORE]
    assert sum(row is not None for row in rows) == (30 if harm is copy_backup_over else 0)
    await stores.close()


def write_notes(path: Path) -> None:
    path.write_text("notes " * 1000)


async def test_a_file_of_another_kind_is_left_alone(path: Path) -> None:
    """A start with the path of something else ends, and moves nothing."""
    write_notes(path)
    assert await keep_damaged(settings_of(path)) == ""
    with pytest.raises(StoreCorrupt):
        await open_stores(settings_of(path))
    assert os.listdir(path.parent) == [path.name]


async def test_sqlite_says_so(path: Path) -> None:
    """About a large file, which a start has no time to read: the first call that meets the damage
    is stored in a new file."""
    stores = await open_stores(settings_of(path))
    for number in BEFORE:
        await stores.states.commit(one_run(number))
    await stores.close()
    overwrite_pages_behind_the_schema(path)
    guarded = Guarded(await open_stores(settings_of(path)), settings_of(path))
    for number in AFTER:
        await guarded.store.commit(one_run(number))
    await until_async(lambda: guarded.store.health.damaged)
    await guarded.works_again()
    assert is_sound(path)
    assert await found(guarded, AFTER[-1:]) == 1
    await guarded.close()


def overwrite_pages_behind_the_schema(path: Path) -> None:
    """Those of a table that nobody reads at a start."""
    other = apsw.Connection(str(path))
    other.set_busy_timeout(120_000)
    other.pragma("writable_schema", True)
    root = other.execute("SELECT rootpage FROM sqlite_schema WHERE name = 'steps'").get
    other.close()
    with path.open("r+b") as file:
        file.seek((root - 1) * 4096)
        file.write(os.urandom(4096))


async def test_what_sqlite_or_nobody_writes_is_no_damage(guarded: Guarded, path: Path) -> None:
    """Checkpoints of other processes, a VACUUM, a changed time of the file."""
    await fill(guarded, path)
    for start in (100, 110, 120):
        other = apsw.Connection(str(path))
        other.set_busy_timeout(120_000)
        other.execute("VACUUM")
        other.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
        other.close()
        await commit_all(guarded, range(start, start + 10))
        await guarded.stores.states.ping()
    assert guarded.kinds == []
    os.utime(path)
    await guarded.store.commit(one_run(900))
    await guarded.works_again()
    assert guarded.kinds == ["damaged"]  # it waited until the file was checked
    assert kept(path) == []
    assert guarded.store.health.damaged == ()
    assert await found(guarded, [*BEFORE, *AFTER[:30], 900]) == 91


@pytest.mark.parametrize("begun", ["", "CREATE TABLE migrations (name TEXT, applied_at REAL)"])
def test_a_file_that_another_gateway_is_making_is_no_damage(tmp_path: Path, begun: str) -> None:
    """It has the mark of a gateway's file before it has tables."""
    path = tmp_path / "gateway.db"
    with apsw.Connection(str(path)) as connection:
        connection.pragma("application_id", APPLICATION_ID)
        if begun:
            connection.execute(begun)
    assert damage(str(path), QUICK) == ""
    with apsw.Connection(str(path)) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS migrations (name TEXT, applied_at REAL)")
        connection.execute("INSERT INTO migrations VALUES ('core_001_conversations_and_runs', 1)")
    assert "no such table" in damage(str(path), QUICK)
