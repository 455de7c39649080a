"""Copies of a database's file, each whole while others write to it."""

import json
import os
import shutil
import time
from contextlib import closing, suppress
from pathlib import Path

import apsw

from gateway.config.storage import MOVES, PRICES, SPOOL, StorageSettings
from gateway.stores.protocols import StoreBusy, StoreError, StoreFull
from gateway.stores.sqlite.files import LIST, LOG, finish, locked, look, sync, translate

_PART = "-part"  # suffix of a copy that is not whole yet
# Names in a backup: of the database's file, and of the folder with what waits for a database.
DATABASE = "gateway.db"
_WAITING = "spool"

_TRIES = 200
_PAUSE_S = 0.02  # between two tries to copy files that change


_FOREIGN = """
SELECT 1 FROM sqlite_master
WHERE (type IN ('trigger', 'view') OR tbl_name = 'admin_keys') AND instr(?1, sql) = 0
UNION ALL SELECT 1 WHERE 'admin_keys' NOT IN (SELECT name FROM sqlite_master)
"""
_TAKE_OVER = """
DELETE FROM admin_keys WHERE EXISTS (SELECT 1 FROM old.admin_keys WHERE pid >= 0);
INSERT OR IGNORE INTO admin_keys SELECT * FROM old.admin_keys;
SELECT CASE count(*) WHEN 0 THEN '' ELSE
'; stops, limits and other acts of people since then that it lacks: ' || count(*) END
FROM old.operator_changes WHERE kind <> 'store' AND id NOT IN (SELECT id FROM operator_changes)
"""


def copy_file(source: apsw.Connection, path: str) -> None:
    """Write what `source` sees now to a file that its owner alone can read, in place of an earlier
    one at `path`. Raises: StoreFull: the disk lacks room for it; OSError, apsw.Error."""
    part = Path(path + _PART)
    part.unlink(missing_ok=True)
    needed = source.pragma("page_count") * source.pragma("page_size")
    free = shutil.disk_usage(part.absolute().parent).free
    if free < needed:
        raise StoreFull(
            f"no room for {path!r}: it needs {needed} bytes, and {free} are free; nothing is "
            "changed (to upgrade without a copy: storage.copy_before_changes)"
        )
    try:
        part.touch(0o600)
        with closing(apsw.Connection(str(part))) as target:
            with target.backup("main", source, "main") as pages:
                pages.step()
            # One file, also where nobody may write beside it.
            target.pragma("journal_mode", "delete")
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def snapshot(settings: StorageSettings, folder: Path) -> None:
    """Copy the file, and what waits for it on disk, to a folder, as they are at one moment. Others
    wait for the lock only while the files of what waits are copied. Of a server only what waits is
    copied. Raises: StoreError, OSError."""
    if settings.shared:
        _copy_waiting(settings, folder)
        return
    path = settings.path
    try:
        with closing(apsw.Connection(path)) as writer, closing(apsw.Connection(path)) as source:
            writer.set_busy_timeout(settings.busy_timeout_ms)
            # A record leaves the spool when it is in the database: under the lock none does.
            writer.execute("BEGIN IMMEDIATE")
            source.execute("BEGIN; SELECT count(*) FROM migrations").fetchall()
            _copy_waiting(settings, folder)
            with suppress(FileNotFoundError):
                shutil.copy2(path + PRICES, folder / PRICES)
            writer.execute("ROLLBACK")
            copy_file(source, str(folder / DATABASE))
    except apsw.Error as error:
        raise translate(error, path) from error


def _copy_waiting(settings: StorageSettings, folder: Path) -> None:
    """Copy the files of what waits on disk to a folder, as a killed gateway would leave them.
    Raises: StoreBusy: they change all the time; OSError."""
    spool = Path(settings.spool_folder or os.devnull)
    copy = folder / _WAITING
    for _ in range(_TRIES):
        if not (before := _looks(spool)):
            return
        shutil.rmtree(copy, ignore_errors=True)
        with suppress(OSError):  # a file is removed meanwhile
            shutil.copytree(spool, copy)
        if before == _looks(spool):
            return
        time.sleep(_PAUSE_S)
    raise StoreBusy(f"{str(spool)!r} changes all the time: try again")


def _looks(folder: Path) -> object:
    return {each: look(str(each)) for each in folder.glob("*")}


def _refuse_others(path: str) -> None:
    """Raises: StoreBusy: a process has the file open."""
    try:
        with closing(apsw.Connection(path)) as connection:
            # Moves the log into the file and removes it, which only the last connection can.
            connection.pragma("journal_mode", "delete")
    except apsw.BusyError as error:
        raise StoreBusy(f"{path!r} is in use: stop the gateway first") from error
    except apsw.Error:
        pass  # it is damaged, which may be why it is replaced


def take_over(path: str, old: str, made: str) -> str:
    """Let a restored file ask for the admin keys of the one that it replaces, if that has any.
    `made`: the statements that make a gateway's tables. Returns words about what people have done
    since. Raises: StoreError: it has triggers, views or tables that no gateway makes, and that
    would change what is written to it; apsw.Error."""
    with locked(Path(old).parent):
        finish(old)
    with closing(apsw.Connection(path)) as restored:
        if restored.execute(_FOREIGN, (made,)).get:
            raise StoreError("gateway.db in it has triggers, views or tables that no gateway makes")
        with suppress(apsw.Error):  # there is none, or it is damaged
            restored.execute("ATTACH ? AS old", (old * os.path.exists(old),))
            return str(restored.execute(_TAKE_OVER).get)
    return ""


def put_in_place(settings: StorageSettings, folder: Path, kept: str) -> None:
    """Put a folder's files where a gateway looks for them, all or nothing. What is there gets names
    that end in `kept`. Raises: StoreBusy: a process has the file open; StoreError: something is
    there, and `kept` is empty; OSError."""
    file = settings.file
    path = file or settings.spool_folder
    places = {_WAITING: SPOOL * bool(file), PRICES: PRICES, DATABASE: ""}
    with locked(Path(path).parent):
        if os.path.exists(file):
            _refuse_others(settings.path)
        old = {LOG, *places.values()}
        moves = [(each, each + kept) for each in old if os.path.exists(path + each)]
        if moves and not kept:
            raise StoreError(f"{path}{moves[0][0]} is there: with --replace it is kept beside")
        moves += [(f"{MOVES}/{n}", to) for n, to in places.items() if os.path.exists(folder / n)]
        (folder / LIST).write_text(json.dumps(moves))
        # After a power cut nothing is moved that is not whole.
        for each in folder.parent.rglob("*"):
            sync(each)
        folder.rename(path + MOVES)
        finish(path)
