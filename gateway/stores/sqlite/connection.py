"""SQLite's files and connections: what a deleted file leaves, and errors as those of the store."""

import contextlib
import ctypes
import os
import sys
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import TypeVar

import apsw

from gateway.config.storage import IN_MEMORY, StorageSettings
from gateway.stores import protocols
from gateway.stores.sqlite.log_index import LogIndex

if sys.platform != "win32":
    import fcntl

LOG = "-wal"
INDEX = "-shm"
"""Suffixes of the write-ahead log of a file, and of the log's index."""

_LOG_SUFFIXES = (LOG, INDEX)

_NOTHING = (0, 0, 0, 0)


class FileIdentity:
    """The files of an open database at `settings.path`: itself, and its write-ahead log.

    SQLite writes to the file only while a checkpoint moves pages from the log there, in whatever
    process. A file that changes at any other time is written to by another program, which copies a
    backup over it or cuts it off. `sound`: the doubt that the last check of the file did not
    confirm; SQLite's word for it is not taken again."""

    def __init__(self, settings: StorageSettings, writer: apsw.Connection, sound: str) -> None:
        self.path = settings.path
        self._sound = sound
        self._index = LogIndex(writer)
        self._moves = self._index.moves()
        self._file = _look(self.path)
        self._log = _look(self.path + LOG)[:2]
        self._seen = _NOTHING
        self.doubt = ""
        """The reason why the file has to be checked before it is used again; empty without one."""

    def lost(self) -> protocols.StoreReplaced | None:
        """Returns the error for writes to files that are no longer the ones at the path, or that
        another program has written to. Called while the writer is open, in its thread."""
        if self.path == IN_MEMORY:
            return None
        moves = self._index.moves()
        now = _look(self.path)
        is_there = now[2] > 0 and now[:2] == self._file[:2]  # an empty file is none of ours
        if not is_there or _look(self.path + LOG)[:2] != self._log:
            return protocols.StoreReplaced(f"{self.path!r} was deleted or replaced")
        is_changed = now != self._file and self._moves and self._index.moves() == self._moves
        if is_changed and not self.doubt:
            self.doubt = "was written to by another program"
        self._file = now
        self._moves = moves
        if self.doubt:
            return protocols.StoreDamaged(f"{self.path!r} {self.doubt}")
        return None

    def is_quiet(self) -> bool:
        """True if nobody has written to a file in doubt since this was asked before."""
        before = self._seen
        self._seen = _look(self.path)
        return not self.doubt or before == self._seen

    def remove_log(self) -> None:
        """Remove the log if the file was replaced: it does not belong to the new one."""
        now = _look(self.path)
        if now == _NOTHING or now[:2] == self._file[:2]:
            return
        with locked(Path(self.path).parent):
            if _look(self.path + LOG)[:2] == self._log:
                _remove_log(self.path)

    def translated(self, error: BaseException) -> BaseException:
        """Returns the StoreError for an error of SQLite. If the error says that the file is
        damaged, the file is checked."""
        doubt = f"is damaged ({error})"
        translated = translate(error, self.path)
        if isinstance(translated, protocols.StoreCorrupt) and doubt != self._sound:
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
        if os.path.exists(path):
            return
        _remove_log(path)
        os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))


def _remove_log(path: str) -> None:
    for suffix in _LOG_SUFFIXES:
        Path(path + suffix).unlink(missing_ok=True)


def _look(path: str) -> tuple[int, int, int, int]:
    """Device, inode and size of a file, and when it was last written to; `_NOTHING` without one."""
    try:
        stat = os.stat(path)
    except OSError:
        return _NOTHING
    return stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns


@contextlib.contextmanager
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


T = TypeVar("T")

# Prepares a newly opened connection: loads an extension, registers a function.
ConnectionHook = Callable[[apsw.Connection], None]
# "STGW" in the file's header distinguishes our files from any other SQLite database.
APPLICATION_ID = 0x53544757

# A write-ahead log that has grown beyond this is truncated to it when it is next emptied.
JOURNAL_SIZE_LIMIT_BYTES = 64 * 1024 * 1024

_CREATE = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE

_BUSY_S = 0.01  # between two attempts to open a file that others open, too
MEMORY_LIMIT_BYTES = 2**31 - 2**20
"""Most an in-memory database can hold: SQLite allocates it as one block of less than 2 GiB."""

_MEANINGS: tuple[tuple[type[Exception], type[protocols.StoreError], str], ...] = (
    (apsw.BusyError, protocols.StoreBusy, "is locked by another process"),
    (apsw.LockedError, protocols.StoreBusy, "is locked"),
    (apsw.FullError, protocols.StoreFull, "cannot grow: the disk or the database is full"),
    (apsw.ReadOnlyError, protocols.StoreReadOnly, "is read-only"),
    (apsw.PermissionsError, protocols.StoreReadOnly, "may not be written"),
    (apsw.NotADBError, protocols.StoreCorrupt, "is not an SQLite database"),
    (apsw.CorruptError, protocols.StoreCorrupt, "is damaged"),
    (apsw.CantOpenError, protocols.StoreUnavailable, "cannot be opened"),
    (apsw.IOError, protocols.StoreUnavailable, "cannot be read or written"),
    (apsw.NoMemError, protocols.StoreUnavailable, "is out of memory"),
)


_HAS_RUN = """
SELECT 1 FROM runs WHERE id = ?1 UNION ALL
SELECT 1 FROM conversations WHERE id = ?1 OR external_key = ?1 UNION ALL
SELECT 1 FROM budget_accounts WHERE budget = ?1 AND budget LIKE 'wrap-%' LIMIT 1
"""


def has_run(path: str, name: str) -> bool:
    """Whether a database has a run, conversation or budget of `wrap` of this name; False when it
    cannot be read."""
    try:
        with closing(apsw.Connection(path, flags=apsw.SQLITE_OPEN_READONLY)) as connection:
            return connection.execute(_HAS_RUN, (name,)).get is not None
    except apsw.Error:
        return False


def translate(error: BaseException, path: str) -> BaseException:
    """The StoreError for an error of SQLite at `path`; any other error is returned unchanged."""
    if not isinstance(error, apsw.Error):
        return error
    meaning, words = next(
        ((meaning, words) for kind, meaning, words in _MEANINGS if isinstance(error, kind)),
        (protocols.StoreError, "refused the operation"),
    )
    if meaning is protocols.StoreUnavailable and (forbidden := _unwritable(path)):
        meaning = protocols.StoreReadOnly
        words = forbidden
    if isinstance(error, apsw.SQLError) and "no such table" in str(error):
        meaning = protocols.StoreCorrupt
        words = "has lost tables"
    translated = meaning(f"{path!r} {words} ({error})")
    translated.__cause__ = error
    return translated


def open_all(
    settings: StorageSettings, hooks: Iterable[ConnectionHook]
) -> Iterator[apsw.Connection]:
    """The connection that writes, then `settings.reader_threads` that cannot. Raises: apsw.Error,
    OSError, SchemaMismatch."""
    path = settings.path
    flags = apsw.SQLITE_OPEN_READONLY
    if settings.in_memory:
        # A new name each time: two gateways in one process do not share their data.
        path = f"file:/gateway-{uuid.uuid4().hex}?vfs=memdb"
        flags |= apsw.SQLITE_OPEN_URI
        yield _open(
            settings, hooks, path, flags=_CREATE | apsw.SQLITE_OPEN_URI, prepare=_prepare_memory
        )
    else:
        yield open_writer(settings, hooks)
    for _ in range(settings.reader_threads):
        yield _open(settings, hooks, path, flags=flags)


def open_writer(settings: StorageSettings, hooks: Iterable[ConnectionHook]) -> apsw.Connection:
    """The connection that writes to the file; creates the file, and its directory, if missing.
    Raises: apsw.Error, OSError, SchemaMismatch."""

    def prepare(connection: apsw.Connection) -> None:
        _claim(connection, settings.path)
        if _journal_mode(connection, settings) != "wal":
            raise protocols.StoreUnavailable(
                f"{settings.path!r} is on a file system without shared memory"
            )
        connection.pragma("synchronous", settings.synchronous)
        connection.pragma("journal_size_limit", JOURNAL_SIZE_LIMIT_BYTES)

    create_private(settings.path)
    return _open(settings, hooks, settings.path, flags=_CREATE, prepare=prepare)


def _open(
    settings: StorageSettings,
    hooks: Iterable[ConnectionHook],
    name: str,
    flags: int,
    prepare: ConnectionHook = lambda _: None,
) -> apsw.Connection:
    connection = apsw.Connection(name, flags=flags)
    try:
        connection.set_busy_timeout(settings.busy_timeout_ms)
        prepare(connection)
        # Or statements are compiled again whenever a value is bound that a plan could depend on.
        connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
        connection.pragma("cache_size", -1024 * settings.cache_mb)
        connection.pragma("temp_store", "memory")
        for hook in hooks:
            hook(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def _journal_mode(connection: apsw.Connection, settings: StorageSettings) -> str:
    """The file's journal mode, set to "wal". SQLite does not wait, as it does for other locks,
    while somebody else opens a new file: that is made up for. Raises: apsw.BusyError."""
    until = time.monotonic() + settings.busy_timeout_ms / 1000
    while True:
        try:
            return str(connection.pragma("journal_mode", "wal"))
        except apsw.BusyError:
            if time.monotonic() > until:
                raise
            time.sleep(_BUSY_S)


def _prepare_memory(connection: apsw.Connection) -> None:
    """Prepare the connection that writes to an in-memory database. SQLite's `memdb` file system has
    no write-ahead log: a commit needs every reader to be idle, and a reader waits for the
    transaction. `Database` makes its threads take turns. Source:
    https://sqlite.org/src/file/src/memdb.c"""
    connection.pragma("journal_mode", "memory")
    # The default limit is half of what is possible.
    limit = ctypes.c_int64(MEMORY_LIMIT_BYTES)
    connection.file_control("main", apsw.SQLITE_FCNTL_SIZE_LIMIT, ctypes.addressof(limit))


def load_vector_extension(connection: apsw.Connection) -> None:
    """Load sqlite-vec, whose functions and tables the pattern store needs. Raises: StoreUnavailable
    when the extension is not installed or does not load."""
    try:
        import sqlite_vec

        connection.enable_load_extension(True)
        try:
            connection.load_extension(sqlite_vec.loadable_path())
        finally:
            connection.enable_load_extension(False)
    except (ImportError, apsw.Error, OSError) as error:
        raise protocols.StoreUnavailable(
            f"the pattern store needs the sqlite-vec extension, which does not load ({error}); "
            "install the package sqlite-vec for this platform, or set etraces.enabled: false"
        ) from error


def one_view(work: Callable[[apsw.Connection], T]) -> Callable[[apsw.Connection], T]:
    """`work` as one read transaction: all its statements see the same data."""

    def within(connection: apsw.Connection) -> T:
        connection.execute("BEGIN")
        try:
            return work(connection)
        finally:
            if connection.in_transaction:  # SQLite ends it itself on some errors
                connection.execute("COMMIT")

    return within


def _unwritable(path: str) -> str:
    """Reason why the file cannot be written; empty if it can be."""
    if path != IN_MEMORY and os.path.exists(path) and not os.access(path, os.W_OK):
        return "may not be written"
    # SQLite keeps its log in the same directory.
    is_readable = path == IN_MEMORY or os.access(Path(path).parent, os.W_OK)
    if is_readable:
        return ""
    return "is in a directory that is read-only"


def _claim(connection: apsw.Connection, path: str) -> None:
    # Read before the id: another gateway that creates the file at the same time writes the id
    # first, so a file that has content now and still no id afterwards is not ours.
    occupied = connection.execute("SELECT count(*) FROM sqlite_schema").get
    if connection.pragma("application_id") == APPLICATION_ID:
        return
    if occupied:
        raise protocols.SchemaMismatch(f"{path!r} is the database of another application")
    connection.pragma("application_id", APPLICATION_ID)
