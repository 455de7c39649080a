"""Files of records that wait: locks, damage, versions, bounds, slow and failing disks."""

from __future__ import annotations

import asyncio
import functools
import os
import stat
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import apsw
import pytest
import structlog

from gateway.config.storage import StorageSettings
from gateway.config.values import Secret
from gateway.features.store_outages.disk_spool import DiskSpool
from gateway.features.store_outages.spool import Spool, Waiting
from gateway.features.store_outages.spool_file import SpoolFile, free_files
from gateway.stores.records import CallRecord, StepContent
from steering_gateway_testing.outages import fill_up
from steering_gateway_testing.patience import until_async
from steering_gateway_testing.store_conformance.records import (
    START,
    a_call,
    a_conversation,
    a_step,
    one_run,
)

ROOM = (100, 2**20)
NO_LIMIT_MS = 60_000.0


def settings_of(folder: Path, **changes: Any) -> StorageSettings:
    """Of a database that nobody asks, with files in `folder`."""
    values: dict[str, Any] = {"spool_path": str(folder), "spool_limit_ms": NO_LIMIT_MS} | changes
    return StorageSettings(url=Secret("postgresql://nobody@nowhere/none"), **values)


class Disk(DiskSpool):
    """Counts the answers whose record was in memory only."""

    def __init__(self, folder: Path, **changes: Any) -> None:
        self.only_in_memory = 0
        super().__init__(settings_of(folder, **changes), self._count)
        self._trouble.log = self.log = structlog.testing.CapturingLogger()

    def _count(self) -> None:
        self.only_in_memory += 1

    async def keep(self, *records: CallRecord) -> list[Waiting]:
        """Records whose calls wait for them."""
        entries = [Waiting(record) for record in records]
        for entry in entries:
            self.add(entry)
        for entry in entries:
            await self.written(entry)
        return entries


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "there" / "spool"


def full(*_: Any) -> None:
    """Writes to a disk without room."""
    raise apsw.FullError("database or disk is full")


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def only_file(folder: Path) -> Path:
    (path,) = folder.glob("*.db")
    return path


def modes(folder: Path) -> tuple[int, set[int]]:
    """Of the folder, and of what is in it."""
    inside = {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}
    return stat.S_IMODE(folder.stat().st_mode), inside


def content_of(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.iterdir())


def empty(folder: Path) -> None:
    for path in folder.iterdir():
        path.unlink()


async def left(folder: Path, *records: CallRecord) -> Path:
    """The file of a gateway that has ended."""
    disk = Disk(folder)
    await disk.keep(*records)
    await disk.close()
    return only_file(folder)


async def taken(disk: DiskSpool, room: tuple[int, int] = ROOM) -> list[CallRecord]:
    return [entry.record for entry in await disk.take_over(room)]


async def test_a_file_is_there_while_something_waits(folder: Path) -> None:
    """Only its owner may read it; it goes with its last record."""
    disk = Disk(folder)
    assert not os.access(folder, os.F_OK)
    first, second = await disk.keep(one_run(1), one_run(2))
    path = only_file(folder)
    assert modes(folder) == (0o700, {0o600})
    assert disk.records == 2
    await disk.remove([first])
    await disk.tidy()
    assert only_file(folder) == path
    await disk.remove([second])
    await disk.tidy()
    assert names(folder) == []
    assert (disk.records, disk.only_in_memory) == (0, 0)
    await disk.keep(one_run(3))
    assert disk.records == 1
    await disk.close()


async def test_what_came_together_is_one_transaction(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nine records, one write."""
    sizes: list[int] = []
    write = SpoolFile.write

    def counted(self: SpoolFile, added: Any, removed: Any) -> None:
        sizes.append(len(added))
        write(self, added, removed)

    monkeypatch.setattr(SpoolFile, "write", counted)
    disk = Disk(folder)
    await disk.keep(*[one_run(number) for number in range(9)])
    assert sizes == [9]
    await disk.close()


async def test_a_file_is_taken_when_its_process_has_ended(folder: Path) -> None:
    """Not before; then by one process, and in order."""
    records = [one_run(number) for number in range(4)]
    first, second, third = Disk(folder), Disk(folder), Disk(folder)
    entries = await first.keep(*records)
    await first.remove(entries[:1])
    assert await taken(second) == []
    await first.close()
    assert await taken(second) == records[1:]
    assert await taken(third) == []
    assert second.records == 3
    await second.close()
    assert await taken(third) == records[1:]
    await third.close()


async def test_what_is_taken_over_is_removed_from_its_file(folder: Path) -> None:
    """Not from the own one; the empty file goes."""
    await left(folder, one_run(1), one_run(2))
    disk = Disk(folder)
    entries = await disk.take_over(ROOM)
    await disk.keep(one_run(3))
    await disk.remove(entries)
    await disk.tidy()
    assert only_file(folder)
    await disk.close()
    assert await taken(Disk(folder)) == [one_run(3)]


async def logged_while_nothing_is_taken(disk: Disk) -> Sequence[Mapping[str, Any]]:
    """The lines of the log from two attempts to take over what others left; both find nothing."""
    with structlog.testing.capture_logs() as logs:
        assert await taken(disk) == []
        assert await taken(disk) == []
    return logs


def overwrite(path: Path) -> None:
    path.write_bytes(b"no database" * 1000)


def damage_a_record(path: Path) -> None:
    with apsw.Connection(str(path)) as connection:
        connection.execute("UPDATE records SET record = substr(record, 1, 100) WHERE number = 2")
    connection.close()


def another_application(path: Path) -> None:
    with apsw.Connection(str(path)) as connection:
        connection.pragma("application_id", 1)
    connection.close()


@pytest.mark.parametrize("harm", [overwrite, damage_a_record, another_application])
async def test_a_damaged_file_is_named_and_kept(folder: Path, harm: Callable[[Path], None]) -> None:
    """Under another name; it is said once."""
    path = await left(folder, one_run(1), one_run(2))
    harm(path)
    logs = await logged_while_nothing_is_taken(Disk(folder))
    assert [line["event"] for line in logs] == [
        "a file of records that wait cannot be read, and is kept"
    ]
    assert names(folder) == [f"{path.name}.damaged", f"{path.name}.damaged-done"]
    assert logs[0]["path"] == str(folder / f"{path.name}.damaged")
    assert await taken(Disk(folder)) == []


async def test_a_file_of_another_version_is_left_to_others(folder: Path) -> None:
    """As in an upgrade in which both versions run, or that is taken back."""
    path = await left(folder, one_run(1))
    with apsw.Connection(str(path)) as connection:
        connection.pragma("user_version", 7)
    connection.close()
    logs = await logged_while_nothing_is_taken(Disk(folder))
    assert [line["event"] for line in logs] == [
        "records that wait are left to a gateway of another version"
    ]
    assert names(folder) == [path.name, f"{path.name}-done"]
    (lock,) = free_files(folder, ())
    lock.release()


async def test_a_file_whose_process_ended_while_it_was_made(folder: Path) -> None:
    """It is removed."""
    os.makedirs(folder)
    os.close(os.open(folder / "spool-1.db", os.O_CREAT))
    disk = Disk(folder)
    assert await taken(disk) == []
    await disk.tidy()
    assert names(folder) == []


async def test_only_as_much_is_taken_over_as_there_is_room_for(folder: Path) -> None:
    """But a file that is larger than all room is taken where nothing else waits."""
    older, newer = Disk(folder), Disk(folder)
    await older.keep(one_run(1), one_run(2), one_run(3))
    await newer.keep(one_run(4))
    await older.close()
    await newer.close()
    disk = Disk(folder)
    found = await taken(disk, (2, 2**20))
    assert len(found) in (1, 3)
    assert await taken(disk, (2 - len(found), 2**20)) == []
    rest = Disk(folder)
    assert len(await taken(rest)) == 4 - len(found)
    await disk.close()
    await rest.close()


async def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    """One warning that names the key; answers do not wait, and are counted."""
    (tmp_path / "file").touch()
    disk = Disk(tmp_path / "file" / "spool")
    disk.check_folder()
    await disk.keep(one_run(1), one_run(2))
    disk.try_again()
    await disk.keep(one_run(3))
    await disk.close()
    (said,) = disk.log.calls
    assert said.method_name == "warning"
    assert "storage.spool_path" in said.args[0]
    assert (disk.records, disk.only_in_memory) == (0, 3)


async def test_what_waited_in_memory_is_written_when_the_disk_works(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk, for example; what was stored meanwhile is not written any more."""
    disk = Disk(folder)
    (before,) = await disk.keep(one_run(0))
    with monkeypatch.context() as patch:
        patch.setattr(SpoolFile, "write", full)
        stored, _ = await disk.keep(one_run(1), one_run(2))
        await disk.remove([before, stored])
    disk.try_again()
    await until_async(lambda: disk.records == 1)
    await disk.keep(one_run(3))
    assert [said.kwargs.get("reason") for said in disk.log.calls] == [
        "database or disk is full",
        None,
    ]
    assert (disk.records, disk.only_in_memory) == (2, 2)
    await disk.close()
    assert await taken(Disk(folder)) == [one_run(2), one_run(3)]


async def stored_on_a_full_disk(disk: Disk, fill: Callable[[], object]) -> list[CallRecord]:
    """Four records wait; when the disk is full three are stored, and the gateway is killed; what
    the next one finds."""
    entries = await disk.keep(*[one_run(number) for number in range(4)])
    fill()
    await disk.remove(entries[:1])
    await disk.remove(entries[1:3])
    assert disk.records == 1
    await disk.tidy()
    assert disk._files is not None
    for file in disk._files.files:  # its locks end with it, and nothing else is done
        file.leave().release()
    return await taken(Disk(disk.folder))


async def test_what_is_stored_while_the_disk_is_full_is_not_found_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing can be removed from the file; each record that is stored is marked in place."""
    disk = Disk(folder)
    fill = functools.partial(monkeypatch.setattr, SpoolFile, "write", full)
    assert await stored_on_a_full_disk(disk, fill) == [one_run(3)]
    assert [said.method_name for said in disk.log.calls] == ["warning"]


async def test_what_is_stored_while_a_real_disk_is_full_is_not_found_again(
    small_disk: Path,
) -> None:
    """The same on a file system without room for another page."""
    disk = Disk(small_disk / "spool")
    filler = small_disk / "filler"
    assert await stored_on_a_full_disk(disk, lambda: fill_up(filler)) == [one_run(3)]


async def test_a_slow_disk_does_not_hold_answers(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One answer waits for the limit, those after it not at all; all is written in the end."""
    goes_on = asyncio.Event()
    loop = asyncio.get_running_loop()
    write = SpoolFile.write

    def slow(self: SpoolFile, added: Any, removed: Any) -> None:
        asyncio.run_coroutine_threadsafe(goes_on.wait(), loop).result()
        write(self, added, removed)

    monkeypatch.setattr(SpoolFile, "write", slow)
    disk = Disk(folder, spool_limit_ms=1)
    await disk.keep(one_run(1))
    disk._settings = settings_of(folder)
    await disk.keep(one_run(2), one_run(3))
    assert (disk.records, disk.only_in_memory) == (0, 3)
    goes_on.set()
    await disk.keep(one_run(4))
    await disk.close()
    assert len(await taken(Disk(folder))) == 4


async def test_files_that_were_deleted_are_written_anew(folder: Path) -> None:
    """Its own, and one that was taken over."""
    await left(folder, one_run(1))
    disk = Disk(folder)
    await disk.take_over(ROOM)
    await disk.keep(one_run(2))
    empty(folder)
    await disk.keep(one_run(3))
    await disk.close()
    found = await taken(Disk(folder))
    assert sorted(map(repr, found)) == sorted(map(repr, map(one_run, (1, 2, 3))))


@pytest.mark.parametrize(
    ("changes", "kept"),
    [
        ({"store_content": False}, "[omitted: "),
        ({}, "[masked:"),
        ({"store_content": True, "mask_secrets": False}, "sk-ant-"),
    ],
)
async def test_files_hold_what_the_run_log_holds(
    folder: Path, changes: dict[str, Any], kept: str
) -> None:
    """Redacted, and with secrets masked, as the settings say."""
    secret = "sk-ant-api03-" + "aB3dE5fG7h" * 4
    content = StepContent(thought=f"the key is {secret}")
    disk = Disk(folder, **changes)
    await disk.keep(one_run(1, steps=(a_step(0, content=content),)))
    await disk.close()
    (record,) = await taken(Disk(folder))
    assert record.steps[0].content is not None
    assert kept in record.steps[0].content.thought
    assert (secret.encode() in content_of(folder)) == (kept == "sk-ant-")


def test_what_is_taken_over_comes_before_what_is_newer() -> None:
    """Of one conversation; a look-up finds the newest state."""

    def at(second: int) -> CallRecord:
        conversation = a_conversation(updated_at=START + second, state=b"%d" % second)
        return a_call(conversation=conversation)

    spool = Spool(max_records=1, max_bytes=2**20)
    assert spool.add(at(2))
    tried = asyncio.Event()
    spool.adopt([Waiting(at(3), tried), Waiting(at(1), tried)])
    loaded = spool.load("acme", "c1")
    assert loaded is not None
    assert loaded.state == b"3"
    order = []
    while spool.records:
        (waiting,) = spool.batch(9)
        order.append(waiting.record.conversation.state)
        spool.remove(waiting)
    assert order == [b"1", b"2", b"3"]


def test_where_records_wait() -> None:
    """Next to a file, in a folder of its own for a server; nowhere for a database in memory."""
    assert StorageSettings(path="a/runs.db").spool_folder == "a/runs.db-spool"
    assert StorageSettings(path="a/runs.db", spool_path=None).spool_folder == ""
    assert StorageSettings(path=":memory:").spool_folder == ""
    settings = settings_of(Path("here"))
    assert settings.spool_folder == "here"
    assert replace(settings, spool_path=None).spool_folder == ""
    assert replace(settings, spool_path=" ").spool_folder == ""
