"""Copies of a database's file, each whole while others write to it."""

import os
import shutil
import time
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import apsw

from gateway.config.storage import StorageSettings
from gateway.stores.protocols import StoreBusy, StoreError, StoreFull
from gateway.stores.sqlite.files import LOG, look, translate

_PART = "-part"  # suffix of a copy that is not whole yet
DATABASE = "gateway.db"
_WAITING = "spool"
"""Names in a backup: of the database's file, and of the folder with what waits for a database."""

_TRIES = 200
_PAUSE_S = 0.02  # between two tries to copy files that change


def copy_file(source: apsw.Connection, path: str) -> None:
    """Write what `source` sees now to a file that its owner alone can read, in place of an earlier
    one at `path`. Raises: StoreFull: the disk lacks room for it; OSError, apsw.Error."""
    part = Path(path + _PART)
    part.unlink(missing_ok=True)
    needed = source.pragma("page_count") * source.pragma("page_size") / 2**20
    free = shutil.disk_usage(part.absolute().parent).free / 2**20
    if free < needed:
        raise StoreFull(
            f"no room for {path!r}: it needs {needed:.1f} MiB, and {free:.1f} are free; nothing is "
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


def put_in_place(settings: StorageSettings, folder: Path, kept: str) -> None:
    """Put a folder's files where a gateway looks for them, all or nothing. What is there gets names
    that end in `kept`. Raises: StoreBusy: a process has the file open; StoreError: something is
    there, and `kept` is empty; OSError."""
    if os.path.exists(settings.file):
        _refuse_others(settings.path)
    path = settings.file
    places = {_WAITING: settings.spool_folder, LOG: path + LOG, DATABASE: path}
    with ExitStack() as undo:
        for name, place in places.items():
            for old, new in ((place, place + kept), (str(folder / name), place)):
                if os.path.exists(old):
                    if old == new:
                        raise StoreError(f"{place} is there: with --replace it is kept beside")
                    os.rename(old, new)
                    undo.callback(os.rename, new, old)
        undo.pop_all()
