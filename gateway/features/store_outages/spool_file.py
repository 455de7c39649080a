"""Files of records that wait for a database: SQLite, each locked by the process that writes to it.

Everything here blocks. The lock (flock) ends with the process; a file whose lock is free was left
behind. Files are made, taken and removed while the folder is locked, so that nobody takes a file
between its creation and its lock.

Records are JSON (`gateway/stores/call_json.py`). A field that is added later gets its default when
an older record is read, one that was removed is left out; any other change of a record needs a new
`VERSION`."""

import asyncio
import os
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import count
from math import inf
from pathlib import Path
from secrets import token_hex

import apsw

from gateway.config.storage import StorageSettings
from gateway.features.store_outages.spool import Waiting
from gateway.observability.logging import get_logger
from gateway.stores.call_json import decoded, encoded
from gateway.stores.records import CallRecord
from gateway.stores.sqlite.files import locked, sync
from gateway.values import Value

VERSION = 1  # of the form of a record; kept with each file


if sys.platform != "win32":
    import fcntl

FILES = "spool-*.db"
DAMAGED = ".damaged"  # added to the name of a file that cannot be read
APPLICATION_ID = 0x67777370
# Suffix of the file of marks, which has a byte for each number of a record. To remove a record
# takes room, which a full disk does not have; to overwrite its mark takes none.
_MARKS = "-done"

_SUFFIXES = ("-wal", "-journal", _MARKS)
_TABLE = "CREATE TABLE records (number INTEGER PRIMARY KEY, record BLOB NOT NULL)"


class UnknownVersion(Exception):
    """The file was written by another version of the gateway."""


class Damaged(Exception):
    """The file cannot be read."""


class Lock(Value):
    """An open handle that holds the lock of a file. Closed after the connection: closing any
    handle of a file ends the locks that SQLite holds on it."""

    path: Path  # the file whose lock is held
    handle: int  # the descriptor of the open file

    def is_current(self) -> bool:
        """True if the file at the path is the one that is locked."""
        try:
            return os.path.samestat(os.stat(self.path), os.fstat(self.handle))
        except OSError:
            return False

    def release(self) -> None:
        """Leave the file to others."""
        os.close(self.handle)


class SpoolFile:
    """An open file and the entries whose records are in it; `size`: the number and bytes of the
    records that were in it when it was opened."""

    def __init__(self, lock: Lock, connection: apsw.Connection, size: tuple[int, float] = (0, 0.0)):
        self._connection = connection
        self.size = size
        self._numbers = count(1)
        how = os.O_CREAT | os.O_RDWR | os.O_CLOEXEC
        self._marks = os.open(f"{lock.path}{_MARKS}", how, 0o600)
        self.lock = lock
        self.entries: set[Waiting] = set()

    @classmethod
    def create(cls, folder: Path, synchronous: str) -> "SpoolFile":
        """A new file in the folder, which is made, too. Raises: OSError, apsw.Error."""
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = folder / FILES.replace("*", token_hex(8))
        with locked(folder):
            handle = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        lock = Lock(path=path, handle=handle)
        try:
            with _connected(path, synchronous) as connection:
                with connection:
                    connection.pragma("application_id", APPLICATION_ID)
                    connection.pragma("user_version", VERSION)
                    connection.execute(_TABLE)
                if synchronous == "full":
                    sync(folder.parent)
                    sync(folder)
                return cls(lock, connection)
        except BaseException:
            _unlink(path)
            lock.release()
            raise

    @classmethod
    def open(cls, lock: Lock, synchronous: str) -> "SpoolFile":
        """A file that was left behind. Raises: UnknownVersion, Damaged, OSError."""
        try:
            with _connected(lock.path, synchronous) as connection:
                version = connection.pragma("user_version")
                if version == 0 and not connection.execute("SELECT * FROM sqlite_schema").get:
                    connection.execute(_TABLE)  # its process ended while it was made
                elif version != VERSION:
                    raise UnknownVersion(f"the form of its records is {version}, not {VERSION}")
                elif connection.pragma("application_id") != APPLICATION_ID:
                    raise Damaged("it is not a file of records")
                (size,) = connection.execute("SELECT count(*), total(length(record)) FROM records")
                return cls(lock, connection, size)
        except (apsw.FullError, apsw.CantOpenError, apsw.ReadOnlyError, apsw.BusyError) as error:
            raise OSError(str(error)) from error
        except apsw.Error as error:
            raise Damaged(str(error)) from error

    def read(self) -> list[Waiting]:
        """The entries of all records that are not marked, in order. Raises: Damaged, and closes the
        file."""
        tried = asyncio.Event()
        tried.set()
        try:
            rows = self._connection.execute("SELECT number, record FROM records ORDER BY number")
            stored = os.pread(self._marks, os.fstat(self._marks).st_size, 0)
            found = [
                Waiting(decoded(record), tried, self, number=number)
                for number, record in rows
                if not any(stored[number : number + 1])
            ]
        except (apsw.Error, ValueError) as error:
            self.leave()
            raise Damaged(str(error)) from error
        self.entries.update(found)
        return found

    def write(self, added: Mapping[Waiting, CallRecord], removed: Collection[Waiting]) -> None:
        """Add entries, with the records that are written for them, and remove others, all or
        nothing. Raises: apsw.Error, OSError."""
        rows = [(next(self._numbers), encoded(record)) for record in added.values()]
        if rows:  # room for the marks, before anything is written that may need one
            os.pwrite(self._marks, bytes(len(rows)), rows[0][0])
        with self._connection:
            self._connection.executemany("INSERT INTO records VALUES (?, ?)", rows)
            self._connection.executemany(
                "DELETE FROM records WHERE number = ?", [(entry.number,) for entry in removed]
            )
        for entry, (number, _) in zip(added, rows, strict=True):
            entry.file = self
            entry.number = number
        self.entries.update(added)
        self.entries.difference_update(removed)

    def mark(self, stored: Collection[Waiting]) -> None:
        """Mark records as stored that cannot be removed from the file now. Raises: OSError."""
        for entry in self.entries.intersection(stored):
            os.pwrite(self._marks, b"\1", entry.number)
            self.entries.discard(entry)

    def leave(self) -> Lock:
        """Close the file, which stays locked."""
        self._connection.close()
        os.close(self._marks)
        return self.lock

    def delete(self) -> None:
        """Remove the file, whose records nobody needs any more."""
        self._connection.pragma("synchronous", "off")
        self.leave()
        if self.lock.is_current():
            with locked(self.lock.path.parent):
                _unlink(self.lock.path)
        self.lock.release()


def free_files(folder: Path, without: Collection[Path]) -> list[Lock]:
    """The locks of all files that no process has, the oldest first. Raises: OSError."""
    found = [path for path in folder.glob(FILES) if path not in without]
    if not found:
        return []
    locks = []
    with locked(folder):
        for path in found:
            # Gone by now, or another user's.
            with suppress(FileNotFoundError, PermissionError):
                handle = os.open(path, os.O_RDWR | os.O_CLOEXEC)
                try:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    os.close(handle)
                else:
                    locks.append(Lock(path=path, handle=handle))
    return sorted(locks, key=lambda lock: os.fstat(lock.handle).st_mtime)


@contextmanager
def _connected(path: Path, synchronous: str) -> Iterator[apsw.Connection]:
    """A connection, which is closed on an error only."""
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE)
    try:
        # One process at a time: the log needs no shared memory.
        connection.pragma("locking_mode", "exclusive")
        connection.pragma("journal_mode", "wal")
        connection.pragma("synchronous", synchronous)
        connection.pragma("secure_delete", "on")  # also of what is forgotten nothing stays
        yield connection
    except BaseException:
        connection.close()
        raise


def _unlink(path: Path) -> None:
    for suffix in ("", *_SUFFIXES):
        Path(f"{path}{suffix}").unlink(missing_ok=True)


class SpoolFolder:
    """The spool files of one process: the one that it writes to, and those that it took over
    from ended processes. A file that cannot be read stays where it is or is renamed, and is
    named in the log once."""

    def __init__(self, folder: Path, synchronous: str):
        self._folder = folder
        self._synchronous = synchronous
        self._own: SpoolFile | None = None
        self._log = get_logger("gateway.store")
        self._named: set[Path] = set()  # files that are of no use to this process
        self.files: list[SpoolFile] = []

    def known(self) -> set[Path]:
        """The files that need not be looked at again."""
        return {*self._named, *(file.lock.path for file in self.files)}

    def write(
        self, changes: dict[Waiting, None], redact: Callable[[CallRecord], CallRecord]
    ) -> None:
        """Add and remove entries. Entries of files that somebody has deleted are written again,
        and join `changes`. May be repeated with the same changes. Raises: OSError, apsw.Error."""
        for file in [each for each in self.files if not each.lock.is_current()]:
            for entry in file.entries:
                entry.file = None
            changes |= dict.fromkeys(file.entries)
            self._forget(file)
            file.leave().release()
        added = {e: redact(e.record) for e in changes if e.file is None and not e.gone}
        if added and self._own is None:
            self._own = SpoolFile.create(self._folder, self._synchronous)
            self.files.append(self._own)
        for file in self.files:
            removed = [entry for entry in changes if entry.gone and entry.file is file]
            if removed or (added and file is self._own):
                file.write(added if file is self._own else {}, removed)

    def delete_empty(self) -> None:
        """Remove the files in which nothing waits."""
        for file in [each for each in self.files if not each.entries]:
            self._forget(file)
            file.delete()

    def _forget(self, file: SpoolFile) -> None:
        self.files.remove(file)
        if file is self._own:
            self._own = None

    def close(self) -> None:
        """Remove empty files, and leave the others to other processes."""
        self.delete_empty()
        for file in self.files:
            file.leave().release()

    def take(self, room: tuple[int, float], *, any_size: bool) -> Iterator[Waiting]:
        """The records of files that no process has, the oldest file first: as many as there is room
        for, in records and bytes; with `any_size` one file, whatever its size. Raises: OSError."""
        locks = free_files(self._folder, self.known())
        try:
            records, size = room
            for lock in locks.copy():
                try:
                    file = SpoolFile.open(lock, self._synchronous)
                    records = records - file.size[0]
                    size = size - file.size[1]
                    if min(records, size) < 0 and not any_size:
                        file.leave()
                        return
                    entries = file.read()
                except UnknownVersion as error:
                    self._named.add(lock.path)
                    self._log.error(
                        "records that wait are left to a gateway of another version",
                        path=str(lock.path),
                        reason=str(error),
                    )
                except Damaged as error:
                    self._set_aside(lock.path, error)
                else:
                    locks.remove(lock)  # from here on it is the file's
                    any_size = False
                    self.files.append(file)
                    yield from entries
        finally:
            for lock in locks:
                lock.release()

    def _set_aside(self, path: Path, error: Exception) -> None:
        """Give a damaged file, and its log, another name. Raises: OSError."""
        self._named.add(path)
        kept = path.with_name(path.name + DAMAGED)
        with locked(self._folder):
            for suffix in _SUFFIXES:
                with suppress(FileNotFoundError):
                    os.rename(f"{path}{suffix}", f"{kept}{suffix}")
            os.rename(path, kept)
        self._log.error(
            "a file of records that wait cannot be read, and is kept",
            path=str(kept),
            reason=str(error),
        )


def erase(settings: StorageSettings, takes: Callable[[CallRecord], bool]) -> int:
    """Remove the records that `takes` says from the files that no process has; their number. A
    gateway that runs drops those in its own file as soon as the database takes records. Raises:
    OSError, apsw.Error."""
    if not settings.spool_folder:
        return 0
    folder = SpoolFolder(Path(settings.spool_folder), settings.synchronous)
    waiting = folder.take((sys.maxsize, inf), any_size=True)
    gone = [entry for entry in waiting if takes(entry.record)]
    for entry in gone:
        entry.gone = True
    folder.write(dict.fromkeys(gone), lambda call: call)
    folder.close()
    return len(gone)
