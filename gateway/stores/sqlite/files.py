"""The files of an SQLite database: whether they are ours, and still the ones that were
opened; the index of the write-ahead log, which all processes share; SQLite's errors as those of the
store."""

import ctypes
import json
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import apsw

from gateway.config.storage import IN_MEMORY, MOVES, StorageSettings
from gateway.stores.protocols import (
    SchemaMismatch,
    StoreCorrupt,
    StoreDamaged,
    StoreReadOnly,
    StoreReplaced,
    StoreUnavailable,
    meaning_of,
    meanings,
)

if sys.platform != "win32":
    import fcntl

# Suffixes of the write-ahead log of a file, and of the log's index.
LOG = "-wal"
INDEX = "-shm"

# The file with the moves of a restore, each from one suffix of the path to another.
LIST = "list"

# "STGW" in the file's header distinguishes our files from any other SQLite database.
APPLICATION_ID = 0x53544757

_NOTHING = (0, 0, 0, 0)

_MEANINGS = meanings(__package__, apsw)


class FileIdentity:
    """The files of an open database at `settings.path`: itself, and its write-ahead log.

    SQLite writes to the file only while a checkpoint moves pages from the log there, in whatever
    process. A file that changes at any other time is written to by another program, which copies a
    backup over it or cuts it off. `sound`: the doubt that the last check of the file did not
    confirm; SQLite's word for it is not taken again."""

    def __init__(self, settings: StorageSettings, writer: apsw.Connection, sound: str):
        self.path = settings.path
        self._sound = sound
        self._index = LogIndex(writer)
        self._moves = self._index.moves()
        self._file = look(self.path)
        self._log = look(self.path + LOG)[:2]
        self._seen = _NOTHING
        # The reason why the file has to be checked before it is used again; empty without one.
        self.doubt = ""

    def lost(self) -> StoreReplaced | None:
        """Returns the error for writes to files that are no longer the ones at the path, or that
        another program has written to. Called while the writer is open, in its thread."""
        if self.path == IN_MEMORY:
            return None
        moves = self._index.moves()
        now = look(self.path)
        is_there = now[2] > 0 and now[:2] == self._file[:2]  # an empty file is none of ours
        if not is_there or look(self.path + LOG)[:2] != self._log:
            return StoreReplaced(f"{self.path!r} was deleted or replaced")
        is_changed = now != self._file and self._moves and self._index.moves() == self._moves
        if is_changed and not self.doubt:
            self.doubt = "was written to by another program"
        self._file = now
        self._moves = moves
        if self.doubt:
            return StoreDamaged(f"{self.path!r} {self.doubt}")
        return None

    def is_quiet(self) -> bool:
        """True if nobody has written to a file in doubt since this was asked before."""
        before = self._seen
        self._seen = look(self.path)
        return not self.doubt or before == self._seen

    def remove_log(self) -> None:
        """Remove the log if the file was replaced: it does not belong to the new one."""
        now = look(self.path)
        if now == _NOTHING or now[:2] == self._file[:2]:
            return
        with locked(Path(self.path).parent):
            if look(self.path + LOG)[:2] == self._log:
                _remove_log(self.path)

    def translated(self, error: BaseException) -> BaseException:
        """Returns the StoreError for an error of SQLite. If the error says that the file is
        damaged, the file is checked."""
        doubt = f"is damaged ({error})"
        translated = translate(error, self.path)
        if isinstance(translated, StoreCorrupt) and doubt != self._sound:
            self.doubt = doubt
        return translated


def create_private(path: str) -> None:
    """Create the file, readable by its owner only, and its directory, if they are missing. SQLite
    would give a new file the process's default mode; this one holds what agents wrote. A log that a
    deleted file left behind is removed: it belongs to no file any more, and another process may
    still have it open. Raises: OSError."""
    directory = Path(path).parent
    directory.mkdir(parents=True, exist_ok=True)
    with locked(directory):
        finish(path)
        if os.path.exists(path):
            return
        _remove_log(path)
        os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))


def claim(connection: apsw.Connection, path: str) -> None:
    """Mark an empty file as ours. Raises SchemaMismatch: it has tables of another application."""
    # Read before the id: another gateway that creates the file at the same time writes the id
    # first, so a file that has content now and still no id afterwards is not ours.
    occupied = connection.execute("SELECT count(*) FROM sqlite_schema").get
    if connection.pragma("application_id") == APPLICATION_ID:
        return
    if occupied:
        raise SchemaMismatch(f"{path!r} is the database of another application")
    connection.pragma("application_id", APPLICATION_ID)


def _remove_log(path: str) -> None:
    for suffix in (LOG, INDEX):
        Path(path + suffix).unlink(missing_ok=True)


def look(path: str) -> tuple[int, int, int, int]:
    """Device, inode and size of a file, and when it was last written to; `_NOTHING` without one."""
    try:
        stat = os.stat(path)
    except OSError:
        return _NOTHING
    return stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Let one process at a time create or remove files in a directory. Raises: OSError."""
    if sys.platform == "win32":  # an open file cannot be deleted there
        yield
        return
    handle = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def sync(path: Path) -> None:
    """Have a file or the entries of a folder written to the disk. Raises: OSError."""
    if sys.platform == "win32":  # where no folder can be opened
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def finish(path: str) -> None:
    """Make the moves that a restore to `path` has decided on: it may have been killed. Called while
    the directory is locked. Raises: OSError: one failed, and all are undone."""
    listed = Path(path + MOVES, LIST)
    try:
        if listed.exists():  # what is left of the folder later has none
            with ExitStack() as undo:
                for old, new in json.loads(listed.read_bytes()):
                    if not os.path.exists(path + new):  # or it was made before
                        os.rename(path + old, path + new)
                    undo.callback(os.rename, path + new, path + old)
                undo.pop_all()
    finally:
        shutil.rmtree(listed.parent, ignore_errors=True)


def translate(error: BaseException, path: str) -> BaseException:
    """The StoreError for an error of SQLite at `path`; any other error is returned unchanged."""
    if not isinstance(error, apsw.Error):
        return error
    meaning, words = meaning_of(error, _MEANINGS)
    if meaning is StoreUnavailable and (forbidden := _unwritable(path)):
        meaning = StoreReadOnly
        words = forbidden
    if isinstance(error, apsw.SQLError) and "no such table" in str(error):
        meaning = StoreCorrupt
        words = "has lost tables"
    translated = meaning(f"{path!r} {words} ({error})")
    translated.__cause__ = error
    return translated


def _unwritable(path: str) -> str:
    """Reason why the file cannot be written; empty if it can be."""
    if path != IN_MEMORY and os.path.exists(path) and not os.access(path, os.W_OK):
        return "may not be written"
    # SQLite keeps its log in the same directory.
    is_readable = path == IN_MEMORY or os.access(Path(path).parent, os.W_OK)
    if is_readable:
        return ""
    return "is in a directory that is read-only"


# Places in the index: https://sqlite.org/walformat.html#the_wal_index_file_format
_SALTS = slice(32, 40)  # changed when the log begins again
_MOVED = slice(96, 100)  # the number of frames that were moved into the file
_TO_MOVE = slice(128, 132)  # set before the first of them is moved
_LENGTH = 136
_REGION = 32 * 1024

# Members of `sqlite3_io_methods`, and what its locks take: https://sqlite.org/c3ref/io_methods.html
_MAP = 13
_LOCK = 14
_RELEASE_EXCLUSIVE = 1 | 8
_TAKE_EXCLUSIVE = 2 | 8
_OF_CHECKPOINTS = 1

_Pointers = ctypes.POINTER(ctypes.c_void_p)
_Method = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, *[ctypes.c_int] * 3)


class LogIndex:
    """Shows what connections have moved from the log into the file, or are moving now.

    A checkpoint says how far it will go, writes to the file, and then says that it is done. One
    that fails or is killed leaves the first number above the second, without the lock."""

    def __init__(self, connection: apsw.Connection):
        self._file = ctypes.c_void_p()
        address = ctypes.addressof(self._file)
        connection.file_control("main", apsw.SQLITE_FCNTL_FILE_POINTER, address)
        self._methods = ctypes.cast(ctypes.cast(self._file, _Pointers)[0], _Pointers)
        self._start = ctypes.c_void_p()
        if self._methods[_MAP]:  # a database in memory has no log
            self._call(_MAP, 0, _REGION, 0, ctypes.byref(self._start))

    def moves(self) -> bytes:
        """Numbers that change with every checkpoint; empty while one runs, or without an index."""
        if not self._start:
            return b""
        index = ctypes.string_at(self._start, _LENGTH)
        if index[_MOVED] != index[_TO_MOVE]:
            if self._call(_LOCK, _OF_CHECKPOINTS, 1, _TAKE_EXCLUSIVE):
                return b""
            self._call(_LOCK, _OF_CHECKPOINTS, 1, _RELEASE_EXCLUSIVE)
            # A checkpoint that ended before the lock was taken is seen now.
            index = ctypes.string_at(self._start, _LENGTH)
        return index[_SALTS] + index[_MOVED] + index[_TO_MOVE]

    def _call(self, method: int, *arguments: Any) -> Any:
        return _Method(self._methods[method])(self._file, *arguments)
