"""`gateway backup` and `gateway restore`: all of a store in one file, and back, or nothing."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import io
import json
import os
import re
import shlex
import shutil
import stat
import subprocess
import sys
import tarfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from itertools import count
from pathlib import Path
from threading import Thread
from typing import NamedTuple

import apsw
import asyncpg
import pytest

from gateway.backends import open_stores
from gateway.cli import main
from gateway.config import load_settings
from gateway.config.storage import StorageSettings
from gateway.config.values import Secret
from gateway.features.keys.store import KeyStore
from gateway.features.store_outages.disk_spool import DiskSpool
from gateway.features.store_outages.spool import Waiting
from gateway.process.running_gateways import state_database
from gateway.runtime import Runtime
from gateway.stores.filters import RunFilter
from gateway.tasks import spawn
from steering_gateway_testing import postgres
from steering_gateway_testing.patience import until_async
from steering_gateway_testing.store_conformance.records import one_run
from tests.postgres import new_database

KEY = "k" * 40
OWN = StorageSettings(path="gateway.db")


@pytest.fixture(autouse=True)
def _in_an_empty_folder(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where no other gateway is known."""
    monkeypatch.chdir(tmp_path)
    for name in ("XDG_STATE_HOME", "XDG_RUNTIME_DIR", "HOME"):
        monkeypatch.setenv(name, str(tmp_path_factory.mktemp("home")))


async def _fill(number: int, storage: StorageSettings = OWN, key: str = "") -> None:
    stores = await open_stores(storage)
    await stores.states.commit(one_run(number))
    if key:
        assert stores.controls is not None
        await stores.controls.show_key(key, 0)
    await stores.close()


async def _runs(storage: StorageSettings = OWN) -> int:
    stores = await open_stores(storage, existing=True)
    found = await stores.runs.count_runs(RunFilter())
    await stores.close()
    return found


async def _waiting(storage: StorageSettings = OWN) -> list[str]:
    """The runs whose records wait on disk; they go on waiting."""
    disk = DiskSpool(storage, lambda: None)
    entries = await disk.take_over((100, 2**20))
    await disk.close()
    return [entry.record.runs[0].id for entry in entries]


async def _put_to_wait(storage: StorageSettings, number: int) -> DiskSpool:
    """A record waits in a file that its process has locked, as long as this is open."""
    disk = DiskSpool(storage, lambda: None)
    entry = Waiting(one_run(number))
    disk.add(entry)
    await disk.written(entry)
    assert entry.safe
    return disk


def _seen() -> dict[str, str]:
    """The files of the folder, with digests of what is in them; SQLite's own are left out."""
    files = [p for p in Path().rglob("*") if p.is_file() and not p.name.endswith(("-wal", "-shm"))]
    return {str(p): hashlib.sha256(p.read_bytes()).hexdigest() for p in files}


async def test_a_backup_has_everything_while_a_gateway_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What is stored up to one moment, also what is only in the log, and what waits on disk in a
    file that the gateway has locked. Only the owner can read it."""
    stores = await open_stores(OWN)
    disk = await _put_to_wait(OWN, 999)
    stored = 0

    async def go_on() -> None:
        nonlocal stored
        for number in count():
            await stores.states.commit(one_run(number))
            stored += 1

    task = spawn(go_on())
    await until_async(lambda: stored >= 3)
    assert await asyncio.to_thread(main, ["backup", "all.tar"]) == 0
    after = stored
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    await disk.close()
    await stores.close()
    assert stat.S_IMODE(os.stat("all.tar").st_mode) == 0o600
    assert set(os.listdir()) == {"all.tar", "gateway.db", "gateway.db-spool"}
    other = StorageSettings(path="new/gateway.db")
    monkeypatch.setenv("GATEWAY_STORAGE__PATH", other.path)
    assert await asyncio.to_thread(main, ["restore", "all.tar"]) == 0
    assert await _waiting(other) == ["r0999"]
    assert stat.S_IMODE(os.stat("new/gateway.db").st_mode) == 0o600
    assert 3 <= await _runs(other) <= after
    assert set(os.listdir("new")) == {"gateway.db", "gateway.db-spool"}


def _flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 0x10
    file.write_bytes(content)


def _repacked(change: Callable[[Path], object]) -> Callable[[Path], None]:
    """A backup whose files were changed, and packed again."""

    def harm(file: Path) -> None:
        with tarfile.open(file) as tar:
            tar.extractall("unpacked", filter="data")
        (folder,) = Path("unpacked").iterdir()
        change(folder)
        with tarfile.open(file, "w:gz") as tar:
            for each in Path("unpacked").iterdir():
                tar.add(each, each.name)

    return harm


def _execute(folder: Path, statements: str) -> None:
    """Change the database of a backup."""
    with closing(apsw.Connection(str(folder / "gateway.db"))) as connection:
        connection.execute(statements)


def _with_later_change(folder: Path) -> None:
    _execute(folder, "INSERT INTO migrations VALUES ('core_999_later', 1)")


def _damaged(folder: Path) -> None:
    with (folder / "gateway.db").open("r+b") as file:
        file.seek(os.path.getsize(file.name) // 2)
        file.write(b"\xaa" * 40_000)


def _with_a_trigger(folder: Path) -> None:
    _execute(
        folder,
        "CREATE TRIGGER never AFTER INSERT ON run_controls BEGIN DELETE FROM run_controls; END",
    )


def _with_a_view(folder: Path) -> None:
    _execute(
        folder,
        "DROP TABLE run_controls;"
        "CREATE VIEW run_controls AS SELECT '' subject, '' tenant, '' action, '' reason,"
        "0 at, '' author, '' about WHERE FALSE",
    )


def _refusing_keys(folder: Path) -> None:
    _execute(
        folder,
        "DROP TABLE admin_keys;"
        "CREATE TABLE admin_keys (pid INTEGER PRIMARY KEY, proof TEXT, CHECK (pid < 0))",
    )


def _without_keys(folder: Path) -> None:
    _execute(folder, "DROP TABLE admin_keys")


def _with_links(folder: Path) -> None:
    """In place of the file: links to one outside are not made."""
    Path("elsewhere.db").write_bytes((folder / "gateway.db").read_bytes())
    (folder / "gateway.db").unlink()
    (folder / "gateway.db").symlink_to("../../elsewhere.db")
    (folder / "spool").symlink_to("../..")


def _of_devices(file: Path) -> None:
    with tarfile.open(file, "w:gz") as tar:
        for kind in (tarfile.LNKTYPE, tarfile.SYMTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE):
            info = tarfile.TarInfo(f"gateway-backup-1/{kind.decode()}")
            info.type = kind
            info.linkname = "/etc/passwd"
            tar.addfile(info)


def _nested_names(file: Path) -> None:
    """Headers that each announce a name for the next."""
    info = tarfile.TarInfo("././@LongLink")
    info.type = tarfile.GNUTYPE_LONGNAME
    info.size = 1
    block = info.tobuf(tarfile.GNU_FORMAT) + b"x" + b"\0" * 511
    file.write_bytes(gzip.compress(block * 5000))


def _outside(file: Path) -> None:
    with tarfile.open(file, "w:gz") as tar:
        info = tarfile.TarInfo("../../outside")
        info.size = 1
        tar.addfile(info, io.BytesIO(b"x"))


HARM: dict[str, tuple[Callable[[Path], object], str]] = {
    "no backup": (lambda file: file.write_text("{}"), "no whole backup"),
    "missing": (Path.unlink, "no whole backup.*No such file"),
    "cut off": (lambda file: os.truncate(file, os.path.getsize(file) - 9), "no whole backup"),
    "a bit": (_flip, "no whole backup"),
    "another tar": (lambda file: file.write_bytes(gzip.compress(b"\0" * 10240)), "no backup"),
    "a path outside": (_outside, "no whole backup.*outside"),
    "a trigger": (_repacked(_with_a_trigger), "triggers, views or tables that no gateway makes"),
    "a view": (_repacked(_with_a_view), "triggers, views or tables that no gateway makes"),
    "no room for keys": (_repacked(_refusing_keys), "tables that no gateway makes"),
    "no table of keys": (_repacked(_without_keys), "tables that no gateway makes"),
    "links": (_repacked(_with_links), "tables that no gateway makes"),
    "devices": (_of_devices, "no database|no backup"),
    "names of names": (_nested_names, "no whole backup"),
    "newer form": (
        _repacked(lambda folder: folder.rename("unpacked/gateway-backup-2")),
        "newer",
    ),
    "newer tables": (_repacked(_with_later_change), "newer version.*core_999_later"),
    "damaged inside": (_repacked(_damaged), "gateway.db is damaged"),
    "of a server": (
        _repacked(lambda f: f.rename(f"{f}postgresql")),
        "another kind of store",
    ),
}


@pytest.mark.parametrize("kind", HARM)
@pytest.mark.parametrize("there", [True, False], ids=["over another", "into nothing"])
def test_what_cannot_be_restored_changes_nothing(
    kind: str, there: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """The reason is one line that names the file; what is there stays as it is."""
    asyncio.run(_fill(1))
    assert main(["backup", "all.tar"]) == 0
    if not there:
        os.unlink("gateway.db")
    harm, reason = HARM[kind]
    harm(Path("all.tar"))
    before = _seen()
    capsys.readouterr()
    assert main(["restore", "all.tar", "--replace"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert re.search(reason, line), line
    assert "all.tar" in line or "gateway.db" in line
    assert "Errno" not in line
    assert "replacing" not in line
    assert _seen() == before


async def test_a_store_in_use_is_not_replaced(capsys: pytest.CaptureFixture[str]) -> None:
    """Not even when that was asked for; nor is one that is there, unless it was."""
    await _fill(1)
    assert await asyncio.to_thread(main, ["backup", "all.tar"]) == 0
    stores = await open_stores(OWN)
    assert await asyncio.to_thread(main, ["restore", "all.tar", "--replace"]) == 2
    assert "'gateway.db' is in use: stop the gateway first" in capsys.readouterr().err
    await stores.states.commit(one_run(2))
    await stores.close()
    assert await asyncio.to_thread(main, ["restore", "all.tar"]) == 2
    assert "--replace" in capsys.readouterr().err
    assert await _runs() == 2
    assert set(os.listdir()) == {"all.tar", "gateway.db"}


@pytest.mark.parametrize("damaged", [False, True])
def test_what_was_there_is_kept_beside(damaged: bool, capsys: pytest.CaptureFixture[str]) -> None:
    """The file and what waited for it, under dated names that are said; also a damaged file."""
    asyncio.run(_fill(1))
    assert main(["backup", "all.tar"]) == 0

    async def go_on() -> None:
        await _fill(2)
        await (await _put_to_wait(OWN, 3)).close()

    asyncio.run(go_on())
    if damaged:
        Path("gateway.db").write_bytes(b"no database" * 1000)
    assert main(["restore", "all.tar", "--replace"]) == 0
    assert asyncio.run(_runs()) == 1
    assert asyncio.run(_waiting()) == []
    (kept,) = Path().glob("gateway.db.replaced-*")
    (spool,) = Path().glob("gateway.db-spool.replaced-*")
    said = capsys.readouterr().out
    assert f"kept: {spool.absolute()}, {kept.absolute()}\n" in said
    assert list(spool.glob("spool-*.db"))
    if not damaged:
        assert asyncio.run(_runs(StorageSettings(path=str(kept)))) == 2


def test_a_failure_halfway_is_undone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that cannot be moved leaves everything where it was."""
    asyncio.run(_fill(1))
    assert main(["backup", "all.tar"]) == 0
    before = _seen()
    rename = os.rename
    refused = list[str]()

    def fails_once(old: str, new: str) -> None:
        if new == os.path.abspath("gateway.db") and not refused:
            refused.append(new)
            raise OSError("the disk is gone")
        rename(old, new)

    monkeypatch.setattr(os, "rename", fails_once)
    assert main(["restore", "all.tar", "--replace"]) == 2
    assert refused
    assert _seen().keys() == before.keys()
    assert asyncio.run(_runs()) == 1


_KILLED = """
import os, signal, sys
from gateway.cli import main
left = int(sys.argv.pop(1))

def before(event, args):
    global left
    if event in ("os.rename", "os.remove", "os.rmdir", "os.mkdir"):
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)

sys.addaudithook(before)
sys.exit(main(sys.argv[1:]))
"""


def _is_killed(step: int, *words: str) -> bool:
    """Run the command, and kill it before a change of the folder; False if it makes fewer."""
    command = [sys.executable, "-B", "-c", _KILLED, str(step), *words]
    ended = subprocess.run(command, capture_output=True, timeout=120)
    assert ended.returncode in (0, -9), ended.stderr
    return ended.returncode != 0


class _Store(NamedTuple):
    """All that a restore replaces."""

    runs: int
    waiting: list[str]
    keys: list[str]  # names of the gateway keys
    prices: str = ""


def _found() -> _Store:
    """The store as it is opened next."""
    return asyncio.run(_store())._replace(prices=Path("gateway.db-prices.json").read_text())


async def _store() -> _Store:
    stores = await open_stores(OWN, existing=True)
    kept = stores.of(KeyStore)
    assert kept is not None
    keys = [key.name for key in await kept.list_keys()]
    runs = await stores.runs.count_runs(RunFilter())
    await stores.close()
    return _Store(runs, await _waiting(), keys)


async def _make(numbers: range) -> None:
    """A store with the first of these runs waiting, and the others stored."""
    await (await _put_to_wait(OWN, numbers[0])).close()
    for number in numbers[1:]:
        await _fill(number, key=KEY)


def _left() -> set[str]:
    """What is there besides a store and what is kept. The folder of a restore that was killed
    before it had decided on anything stays, and is not used."""
    names = {"all.tar", "gateway.db", "gateway.db-spool", "gateway.db-prices.json"}
    return {e for e in os.listdir() if ".replaced-" not in e and ".replacing-" not in e} - names


@pytest.fixture
def two_stores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> dict[str, _Store]:
    """The store in this folder, and that of the backup there."""
    monkeypatch.setenv("GATEWAY_ADMIN_KEY", KEY)
    found = {}
    for name, numbers in (("new", range(20, 24)), ("old", range(10, 12))):
        asyncio.run(_make(numbers))
        Path("gateway.db-prices.json").write_text(name)
        assert main(["keys", "create", "default", "--name", name]) == 0
        found[name] = _found()
        if name == "new":
            assert main(["backup", "all.tar"]) == 0
            for each in ("gateway.db", "gateway.db-prices.json"):
                os.unlink(each)
            shutil.rmtree("gateway.db-spool")
    assert found["old"] == _Store(1, ["r0010"], ["old"], "old")
    assert found["new"] == _Store(3, ["r0020"], ["new"], "new")
    capsys.readouterr()
    return found


@pytest.mark.slow
def test_a_restore_that_is_killed_is_whole(
    two_stores: dict[str, _Store], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever it is killed, the next that opens the store finds all of the old one or all of the
    new one, also where two open it at once, and nothing else is left."""
    seen = []
    for step in count():
        folder = tmp_path / f"killed-{step}"
        folder.mkdir()
        for name in ("gateway.db", "gateway.db-prices.json", "all.tar"):
            shutil.copy2(tmp_path / name, folder)
        shutil.copytree(tmp_path / "gateway.db-spool", folder / "gateway.db-spool")
        monkeypatch.chdir(folder)
        was_killed = _is_killed(step, "restore", "all.tar", "--replace")
        is_decided = Path("gateway.db-moves").exists()
        with ThreadPoolExecutor(2) as openers:
            assert [*openers.map(main, [["audit"], ["audit"]])] == [0, 0]
        (name,) = [name for name, store in two_stores.items() if store == _found()]
        seen.append((is_decided, name))
        assert not _left()
        if not was_killed:
            break
    names = [name for _, name in seen]
    assert names == sorted(names, reverse=True)  # old, and from one step on new
    assert set(names) == {"old", "new"}
    decided = [name for is_decided, name in seen if is_decided]
    assert len(decided) >= 6  # the moves: there are three files or folders of each store
    assert set(decided) == {"new"}


def _decide(*moves: tuple[str, str]) -> Path:
    """Leave what a restore leaves that is killed when it has decided on moves; its folder."""
    folder = Path("gateway.db-moves")
    folder.mkdir()
    (folder / "list").write_text(json.dumps(moves))
    return folder


def test_a_command_finds_a_store_whose_restore_was_killed(
    two_stores: dict[str, _Store], capsys: pytest.CaptureFixture[str]
) -> None:
    """Also between the two moves of the database, when no file is at its place: it does not read
    that of `wrap`."""
    asyncio.run(_fill(1, StorageSettings(path=str(state_database()))))
    folder = _decide(("", ".replaced-1"), ("-moves/gateway.db", ""))
    shutil.copy2("gateway.db", folder)
    os.rename("gateway.db", "gateway.db.replaced-1")
    assert main(["runs", "list", "--json"]) == 0
    said = capsys.readouterr()
    assert len(said.out.splitlines()) == two_stores["old"].runs
    assert not said.err
    assert not _left()


def test_a_move_that_fails_later_is_undone(two_stores: dict[str, _Store]) -> None:
    """The restored files are gone: who opens the store is told, and the old one is back, with what
    was moved before."""
    os.rename("gateway.db-spool", "gateway.db-spool.replaced-1")
    spool = ("-spool", "-spool.replaced-1")
    _decide(spool, ("", ".replaced-1"), ("-moves/gateway.db", ""))
    assert main(["audit"]) == 2
    assert _found() == two_stores["old"]
    assert not _left()


def test_what_a_killed_restore_leaves_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    """The folder in which it had not decided on anything is left to the person, for another
    restore may work in it."""
    asyncio.run(_fill(1))
    assert main(["backup", "all.tar"]) == 0
    left = Path("gateway.db.replacing-1")
    left.mkdir()
    assert main(["restore", "all.tar", "--replace"]) == 0
    (kept,) = Path().glob("gateway.db.replaced-*")
    assert f"kept: {kept.absolute()}, {left.absolute()}\n" in capsys.readouterr().out
    assert left.is_dir()


def test_a_backup_decides_on_no_moves() -> None:
    """A list of moves in it is not unpacked: it could name any file."""
    asyncio.run(_fill(1))
    assert main(["backup", "all.tar"]) == 0
    Path("mine").write_text("mine")
    moves = json.dumps([["/../../../mine", "/../../../stolen"]])

    def hide(folder: Path) -> None:
        (folder / "gateway.db-moves").mkdir()
        (folder / "gateway.db-moves/list").write_text(moves)

    _repacked(hide)(Path("all.tar"))
    assert main(["restore", "all.tar", "--replace"]) == 0
    assert Path("mine").read_text() == "mine"


def test_a_log_in_a_backup_changes_nothing() -> None:
    """It would put a trigger into the database that was looked through without it."""

    def add(folder: Path) -> None:
        shutil.copy2(folder / "gateway.db", "copy.db")
        with closing(apsw.Connection("copy.db")) as connection:
            connection.pragma("journal_mode", "wal")
            connection.execute("CREATE TRIGGER never AFTER INSERT ON runs BEGIN SELECT 1; END")
            shutil.copy2("copy.db-wal", folder / "-wal")
            shutil.copy2("copy.db", folder / "gateway.db")

    asyncio.run(_fill(1))
    assert main(["backup", "all.tar"]) == 0
    _repacked(add)(Path("all.tar"))
    assert main(["restore", "all.tar", "--replace"]) == 0
    assert asyncio.run(_runs()) == 1
    with closing(apsw.Connection("gateway.db")) as connection:
        assert not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'never'").get


def test_of_two_restores_at_once_neither_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second waits for the first, and keeps what that has put there under a name of its own."""
    asyncio.run(_fill(1))
    assert main(["backup", "all.tar"]) == 0
    rename = os.rename
    ended = list[int]()
    other = Thread(target=lambda: ended.append(main(["restore", "all.tar", "--replace"])))

    def meets_another(old: str, new: str) -> None:
        if new == os.path.abspath("gateway.db") and other.ident is None:
            other.start()
            other.join(timeout=5)  # it ends here, or waits
        rename(old, new)

    monkeypatch.setattr(os, "rename", meets_another)
    assert main(["restore", "all.tar", "--replace"]) == 0
    other.join(timeout=60)
    assert ended == [0]
    assert len(list(Path().glob("gateway.db.replaced-*"))) == 2
    assert asyncio.run(_runs()) == 1


def test_both_need_the_admin_key(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of the gateway whose store it is; the audit log says who did it."""
    asyncio.run(_fill(1, key=KEY))
    assert main(["backup", "all.tar"]) == 2
    assert "GATEWAY_ADMIN_KEY" in capsys.readouterr().err
    assert os.listdir() == ["gateway.db"]
    monkeypatch.setenv("GATEWAY_ADMIN_KEY", KEY)
    assert main(["backup", "all.tar", "--author", "ann"]) == 0
    monkeypatch.delenv("GATEWAY_ADMIN_KEY")
    before = _seen()
    assert main(["restore", "all.tar", "--replace"]) == 2
    assert "GATEWAY_ADMIN_KEY" in capsys.readouterr().err
    assert _seen() == before
    monkeypatch.setenv("GATEWAY_ADMIN_KEY", KEY)
    assert main(["restore", "all.tar", "--replace", "--author", "gateway"]) == 2
    assert "state a person's name" in capsys.readouterr().err
    assert main(["restore", "all.tar", "--replace", "--author", "bob"]) == 0
    capsys.readouterr()
    assert main(["audit", "--json"]) == 0
    assert re.search('"author":"bob".*"act":"restore"', capsys.readouterr().out)


def test_the_key_is_that_of_the_store_that_is_replaced(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A backup without a key, or with another one, lifts nothing, and neither does an older one
    whose key was changed since; the store goes on to ask for it."""
    for name, key in (("none.tar", ""), ("other.tar", "x" * 40)):
        asyncio.run(_fill(1, key=key))
        monkeypatch.setenv("GATEWAY_ADMIN_KEY", key)
        assert main(["backup", name]) == 0
        os.unlink("gateway.db")
    asyncio.run(_fill(2, key=KEY))
    before = _seen()
    for name in ("none.tar", "other.tar"):
        for key in ("", "x" * 40):
            monkeypatch.setenv("GATEWAY_ADMIN_KEY", key)
            assert main(["restore", name, "--replace"]) == 2
            assert "GATEWAY_ADMIN_KEY" in capsys.readouterr().err
            assert _seen() == before
    for name in ("none.tar", "other.tar"):
        monkeypatch.setenv("GATEWAY_ADMIN_KEY", KEY)
        assert main(["restore", name, "--replace"]) == 0
        monkeypatch.setenv("GATEWAY_ADMIN_KEY", "x" * 40)
        assert main(["backup", "again.tar"]) == 2
    assert asyncio.run(_runs()) == 1


def test_what_people_did_after_the_backup_is_counted(capsys: pytest.CaptureFixture[str]) -> None:
    """A stop is not undone without a word."""
    asyncio.run(_fill(1))
    assert main(["backup", "all.tar"]) == 0
    assert main(["restore", "all.tar", "--replace"]) == 0
    assert "since then" not in capsys.readouterr().out

    async def act() -> None:
        stores = await open_stores(OWN)
        assert stores.changes is not None
        await stores.changes.note("control", "stop", "r1", {"author": "ann"})
        await stores.close()

    asyncio.run(act())
    assert main(["restore", "all.tar", "--replace"]) == 0
    said = capsys.readouterr().out
    assert "stops, limits and other acts of people since then that it lacks: 1;" in said


def test_a_folder_that_is_not_there_is_said_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    """With the path that was given, and without the number of the system's error."""
    asyncio.run(_fill(1))
    assert main(["backup", "nowhere/all.tar"]) == 2
    assert capsys.readouterr().err == "gateway: No such file or directory: 'nowhere/all.tar'\n"


@pytest.mark.parametrize("command", ["backup", "restore"])
def test_a_store_in_memory_has_no_file(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is made of it, and nothing put into it."""
    asyncio.run(_fill(1))
    assert main(["backup", "all.tar"]) == 0
    before = _seen()
    capsys.readouterr()
    monkeypatch.setenv("GATEWAY_STORAGE__PATH", ":memory:")
    assert main([command, "all.tar"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("gateway: storage")
    assert ":memory:" in line
    assert _seen() == before


def test_what_is_restored_is_on_the_disk_before_it_is_decided_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After a power cut nothing is in place that is not whole."""
    asyncio.run(_fill(1))
    assert main(["backup", "all.tar"]) == 0
    fsync = os.fsync
    rename = os.rename
    flushed = set[str]()
    decided = list[set[str]]()

    def flush(handle: int) -> None:
        flushed.add(os.readlink(f"/proc/self/fd/{handle}"))
        fsync(handle)

    def move(old: str, new: str) -> None:
        if str(new).endswith("gateway.db-moves"):
            files = {str(each) for each in Path(old).rglob("*")} | {str(old)}
            decided.append({os.path.relpath(each, old) for each in files - flushed})
        rename(old, new)

    monkeypatch.setattr(os, "fsync", flush)
    monkeypatch.setattr(os, "rename", move)
    assert main(["restore", "all.tar", "--replace"]) == 0
    assert decided == [set()]


def test_a_backup_is_never_made_over_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    """Nor of a database that is not there."""
    assert main(["backup", "all.tar"]) == 2
    assert not Path("all.tar").exists()
    asyncio.run(_fill(1))
    Path("all.tar").write_text("mine")
    assert main(["backup", "all.tar"]) == 2
    assert "'all.tar' is there already" in capsys.readouterr().err
    assert Path("all.tar").read_text() == "mine"


def test_an_older_backup_gets_the_tables_of_this_version() -> None:
    """Nothing more has to be copied for that: the backup is the copy."""
    asyncio.run(_fill(1))
    with closing(apsw.Connection("gateway.db")) as connection:
        connection.execute(
            "DROP TABLE saved_views; DELETE FROM migrations WHERE name LIKE 'pages_%'"
        )
    assert main(["backup", "all.tar"]) == 0
    os.unlink("gateway.db")
    assert main(["restore", "all.tar"]) == 0
    assert asyncio.run(_runs()) == 1


@pytest.mark.parametrize("there", ["an empty home", "a config", "a state folder"])
def test_what_is_restored_is_what_a_gateway_opens(
    there: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the same config both commands and `gateway serve` mean one database, whose place they
    print; never that of `wrap`, which other commands read where there is no other."""
    words = []
    if there == "a config":
        Path("own.yaml").write_text("storage: {path: data/own.db}")
        words = ["--config", "own.yaml"]
    if there == "a state folder":
        asyncio.run(_fill(9, StorageSettings(path=str(state_database()))))
        assert main(["backup", "all.tar"]) == 2
        said = capsys.readouterr().err
        assert "there is no database at 'gateway.db' yet" in said
        assert not os.path.exists("all.tar")
    settings = load_settings(words[-1] if words else None)
    place = os.path.abspath(settings.storage.path)
    asyncio.run(_fill(1, settings.storage))
    assert main(["backup", "all.tar", *words]) == 0
    assert f"all.tar is made of {place}\n" in capsys.readouterr().out
    os.unlink(place)
    assert main(["restore", "all.tar", *words]) == 0
    assert f"{place} is restored\n" in capsys.readouterr().out
    runtime = Runtime(settings)

    async def opened() -> int:
        started = await runtime.start()
        found = await started.stores.runs.count_runs(RunFilter())
        await runtime.aclose()
        return found

    assert asyncio.run(opened()) == 1


@pytest.mark.slow
def test_a_server_asks_for_its_admin_key(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before a file is moved, and without a change of its tables; the audit log says who did it."""
    storage = StorageSettings(url=Secret(new_database()), spool_path="spool")
    monkeypatch.setenv("GATEWAY_STORAGE__URL", str(storage.url))
    monkeypatch.setenv("GATEWAY_STORAGE__SPOOL_PATH", "spool")
    monkeypatch.setenv("GATEWAY_ADMIN_KEY", KEY)

    async def fill() -> None:
        await _fill(1, storage, key=KEY)
        await (await _put_to_wait(storage, 2)).close()

    async def fetched(statement: str) -> list[str]:
        connection = await asyncpg.connect(str(storage.url))
        rows = await connection.fetch(statement)
        await connection.close()
        return [str(row[0]) for row in rows]

    def changes() -> list[str]:
        return asyncio.run(fetched("SELECT name FROM gateway_migrations ORDER BY name"))

    asyncio.run(fill())
    assert main(["backup", "all.tar"]) == 0
    asyncio.run(fetched("DELETE FROM gateway_migrations WHERE name = 'learning_006_jobs_by_run'"))
    older = changes()
    before = _seen()
    for key in ("", "x" * 40):
        monkeypatch.setenv("GATEWAY_ADMIN_KEY", key)
        assert main(["restore", "all.tar", "--replace"]) == 2
        assert "GATEWAY_ADMIN_KEY" in capsys.readouterr().err
        assert _seen() == before
    monkeypatch.setenv("GATEWAY_ADMIN_KEY", KEY)
    acts = "SELECT author FROM operator_changes WHERE body LIKE '%restore%'"
    rename = os.rename

    def fails(old: str, new: str) -> None:
        if str(old).endswith("-moves/spool"):
            raise OSError("the disk is gone")
        rename(old, new)

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", fails)
        assert main(["restore", "all.tar", "--replace", "--author", "bob"]) == 2
    assert _seen() == before
    assert asyncio.run(fetched(acts)) == []
    assert main(["restore", "all.tar", "--replace", "--author", "ann"]) == 0
    assert changes() == older
    assert asyncio.run(fetched(acts)) == ["ann"]


@pytest.mark.slow
def test_a_restore_beside_a_server_that_is_killed_is_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of what waits for a server there is all of the old or all of the new."""
    storage = StorageSettings(url=Secret(new_database()), spool_path="data/spool")
    monkeypatch.setenv("GATEWAY_STORAGE__URL", str(storage.url))
    monkeypatch.setenv("GATEWAY_STORAGE__SPOOL_PATH", "data/spool")

    async def put(number: int) -> None:
        await (await open_stores(storage)).close()
        await (await _put_to_wait(storage, number)).close()

    async def found() -> list[str]:
        await _runs(storage)
        return await _waiting(storage)

    asyncio.run(put(2))
    assert main(["backup", "all.tar"]) == 0
    seen = []
    for step in count():
        shutil.rmtree("data")
        asyncio.run(put(1))
        was_killed = _is_killed(step, "restore", "all.tar", "--replace")
        seen += asyncio.run(found())
        left = {each for each in os.listdir("data") if ".replacing-" not in each}
        assert {each for each in left if ".replaced-" not in each} == {"spool"}
        if not was_killed:
            break
    assert seen == sorted(seen)
    assert set(seen) == {"r0001", "r0002"}


@pytest.mark.slow
def test_a_server_is_copied_by_its_own_programs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The commands put away and back what waits on disk, and print the lines for the database: with
    its address and options, without the password. The lines work."""
    first, second = new_database(), new_database()

    def settings(url: str) -> StorageSettings:
        secret = url.replace("postgres@", "postgres:s3cret%40@").replace("?", "?password=s3cret&")
        return StorageSettings(url=Secret(secret), spool_path="spool")

    def run(word: str, url: str) -> None:
        monkeypatch.setenv("GATEWAY_STORAGE__URL", str(settings(url).url))
        assert main([word, "all.tar"]) == 0
        said = capsys.readouterr().out
        assert "s3cret" not in said
        assert "host=" in said
        subprocess.run(shlex.split(said.splitlines()[-1]), check=True)

    async def fill() -> None:
        await _fill(1, settings(first))
        await (await _put_to_wait(settings(first), 2)).close()

    asyncio.run(fill())
    programs = os.path.dirname(postgres._program("pg_dump"))
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setenv("GATEWAY_STORAGE__SPOOL_PATH", "spool")
    run("backup", first)
    asyncio.run(_fill(3, settings(first)))
    os.rename("spool", "old")
    run("restore", second)
    assert asyncio.run(_runs(settings(second))) == 1
    assert asyncio.run(_waiting(settings(second))) == ["r0002"]
    assert main(["restore", "all.tar"]) == 2
    assert "--replace" in capsys.readouterr().err
    monkeypatch.delenv("GATEWAY_STORAGE__URL")
    assert main(["restore", "all.tar"]) == 2
    assert "another kind of store" in capsys.readouterr().err


def test_a_damaged_store_is_not_backed_up(capsys: pytest.CaptureFixture[str]) -> None:
    """It would be found when the backup is needed."""
    asyncio.run(_fill(1))
    _damaged(Path())
    assert main(["backup", "all.tar"]) == 2
    assert "damaged" in capsys.readouterr().err
    assert os.listdir() == ["gateway.db"]
