"""Files of records that wait for a database: SQLite, each locked by the process that writes to it.

Everything here blocks. The lock (flock) ends with the process, however that ends; a file whose lock
is free is one that was left behind. Files are made, taken and removed while the folder is locked,
so that nobody takes a file between its creation and its lock.

Records are JSON by Python's own module instead of orjson, which refuses unpaired surrogates and
integers beyond 64 bits and turns NaN into null; all of these may come from a client. A field that
is added later gets its default when an older record is read, one that was removed is left out; any
other change of a record needs a new `VERSION`.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import sys
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import apsw
import msgspec
import structlog

from gateway.stores.records import CallRecord
from gateway.stores.sqlite.files import locked

VERSION = 1
"""Of the form of a record; kept with each file."""


def encoded(record: CallRecord) -> bytes:
    """The record as JSON."""
    values = msgspec.to_builtins(record, enc_hook=dict)  # for mappings that are no dict
    return json.dumps(values, ensure_ascii=False, separators=(",", ":")).encode(
        "utf-8", "surrogatepass"
    )


def decoded(content: bytes) -> CallRecord:
    """The record that `encoded` was given. Raises: ValueError when it is none."""
    values = json.loads(content.decode("utf-8", "surrogatepass"))
    try:
        return msgspec.convert(values, CallRecord)
    except (msgspec.ValidationError, RecursionError) as error:
        raise ValueError(f"not a call record: {error}") from error


if sys.platform != "win32":
    import fcntl

FILES = "spool-*.db"
DAMAGED = ".damaged"
"""Added to the name of a file that cannot be read."""

APPLICATION_ID = 0x67777370

_LOG_SUFFIXES = ("-wal", "-journal")
_TABLE = "CREATE TABLE records (number INTEGER PRIMARY KEY, record BLOB NOT NULL)"


class UnknownVersion(Exception):
    """The file was written by another version of the gateway."""


class Damaged(Exception):
    """The file cannot be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lock:
    """An open handle that holds the lock of a file. Closed after the connection: closing any
    handle of a file ends the locks that SQLite holds on it."""

    path: Path
    handle: int

    def is_current(self) -> bool:
        """True if the file at the path is the one that is locked."""
        try:
            there, here = os.stat(self.path), os.fstat(self.handle)
        except OSError:
            return False
        return (there.st_dev, there.st_ino) == (here.st_dev, here.st_ino)

    def release(self) -> None:
        """Leave the file to others."""
        os.close(self.handle)


class SpoolFile:
    """An open file. `records`: how many are in it."""

    def __init__(self, lock: Lock, connection: apsw.Connection) -> None:
        self._lock = lock
        self._connection = connection
        self.path = lock.path
        self.records: int = connection.execute("SELECT count(*) FROM records").get

    @classmethod
    def create(cls, folder: Path, synchronous: str) -> SpoolFile:
        """A new file in the folder, which is made, too. Raises: OSError, apsw.Error."""
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = folder / FILES.replace("*", secrets.token_hex(8))
        with locked(folder):
            handle = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        lock = Lock(path=path, handle=handle)
        try:
            with _closing_on_error(_connect(path, synchronous)) as connection:
                with connection:
                    connection.pragma("application_id", APPLICATION_ID)
                    connection.pragma("user_version", VERSION)
                    connection.execute(_TABLE)
                if synchronous == "full":
                    _sync(folder.parent, folder)
                return cls(lock, connection)
        except BaseException:
            _unlink(path)
            lock.release()
            raise

    @classmethod
    def open(cls, lock: Lock, synchronous: str) -> SpoolFile:
        """A file that was left behind. Raises: UnknownVersion, Damaged, OSError."""
        try:
            with _closing_on_error(_connect(lock.path, synchronous)) as connection:
                version = connection.pragma("user_version")
                if version == 0 and not connection.execute("SELECT * FROM sqlite_schema").get:
                    connection.execute(_TABLE)  # its process ended while it was made
                elif version != VERSION:
                    raise UnknownVersion(f"the form of its records is {version}, not {VERSION}")
                elif connection.pragma("application_id") != APPLICATION_ID:
                    raise Damaged("it is not a file of records")
                return cls(lock, connection)
        except (apsw.FullError, apsw.CantOpenError, apsw.ReadOnlyError, apsw.BusyError) as error:
            raise OSError(str(error)) from error
        except apsw.Error as error:
            raise Damaged(str(error)) from error

    def size(self) -> float:
        """The bytes of its records."""
        found: float = self._connection.execute("SELECT total(length(record)) FROM records").get
        return found

    def read(self) -> list[tuple[int, CallRecord]]:
        """All records and their numbers, in order. Raises: Damaged."""
        try:
            rows = self._connection.execute("SELECT number, record FROM records ORDER BY number")
            return [(number, decoded(content)) for number, content in rows]
        except (apsw.Error, ValueError) as error:
            raise Damaged(str(error)) from error

    def write(self, added: Sequence[tuple[int, CallRecord]], removed: Sequence[int]) -> None:
        """Add and remove records, all or nothing. Raises: apsw.Error."""
        rows = [(number, encoded(record)) for number, record in added]
        with self._connection:
            if rows:
                self._connection.executemany("INSERT INTO records VALUES (?, ?)", rows)
            if removed:
                numbers = [(number,) for number in removed]
                self._connection.executemany("DELETE FROM records WHERE number = ?", numbers)
            self.records = self._connection.execute("SELECT count(*) FROM records").get

    def is_current(self) -> bool:
        """True if the file is still where it was."""
        return self._lock.is_current()

    def leave(self) -> Lock:
        """Close the file, which stays locked."""
        self._connection.close()
        return self._lock

    def close(self) -> None:
        """Leave the file to others."""
        self.leave().release()

    def delete(self) -> None:
        """Remove the file, whose records nobody needs any more."""
        self._connection.pragma("synchronous", "off")
        self._connection.close()
        if self.is_current():
            with locked(self.path.parent):
                _unlink(self.path)
        self._lock.release()


def free_files(folder: Path, without: Collection[Path]) -> list[Lock]:
    """The locks of all files that no process has, the oldest first. Raises: OSError."""
    found = [path for path in folder.glob(FILES) if path not in without]
    if not found:
        return []
    locks = []
    with locked(folder):
        for path in found:
            # Gone by now, or another user's.
            with contextlib.suppress(FileNotFoundError, PermissionError):
                handle = os.open(path, os.O_RDWR | os.O_CLOEXEC)
                try:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    os.close(handle)
                else:
                    locks.append(Lock(path=path, handle=handle))
    return sorted(locks, key=lambda lock: os.fstat(lock.handle).st_mtime)


def set_aside(lock: Lock) -> Path:
    """Give a damaged file, and its log, another name, and its lock back. Raises: OSError."""
    kept = lock.path.with_name(lock.path.name + DAMAGED)
    with locked(lock.path.parent):
        for suffix in _LOG_SUFFIXES:
            with contextlib.suppress(FileNotFoundError):
                os.rename(f"{lock.path}{suffix}", f"{kept}{suffix}")
        os.rename(lock.path, kept)
    lock.release()
    return kept


def _connect(path: Path, synchronous: str) -> apsw.Connection:
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE)
    with _closing_on_error(connection):
        # One process at a time: the log needs no shared memory.
        connection.pragma("locking_mode", "exclusive")
        connection.pragma("journal_mode", "wal")
        connection.pragma("synchronous", synchronous)
    return connection


@contextlib.contextmanager
def _closing_on_error(connection: apsw.Connection) -> Iterator[apsw.Connection]:
    try:
        yield connection
    except BaseException:
        connection.close()
        raise


def _unlink(path: Path) -> None:
    for suffix in ("", *_LOG_SUFFIXES):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(f"{path}{suffix}")


def _sync(*folders: Path) -> None:
    for folder in folders:
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


class LeftBehind:
    """Takes files over. What cannot be read stays where it is, or under another name, and is named
    in the log once."""

    def __init__(self, folder: Path, synchronous: str) -> None:
        self._folder = folder
        self._synchronous = synchronous
        self._log = structlog.get_logger("gateway.store")
        self.named: set[Path] = set()
        """Files that are of no use to this process."""

    def take(
        self, own: Collection[Path], room: tuple[float, float], *, any_size: bool
    ) -> Iterator[tuple[SpoolFile, list[tuple[int, CallRecord]]]]:
        """Files that no process has, the oldest first, and their records: as many as there is room
        for, in records and bytes; with `any_size` one, whatever its size. Raises: OSError."""
        locks = free_files(self._folder, {*own, *self.named})
        try:
            records, size = room
            while locks:
                file = self._opened(locks.pop(0))
                if file is None:
                    continue
                records, size = records - file.records, size - file.size()
                if min(records, size) < 0 and not any_size:
                    file.close()
                    return
                rows = self._rows(file)
                if rows is not None:
                    any_size = False
                    yield file, rows
        finally:
            for lock in locks:
                lock.release()

    def _opened(self, lock: Lock) -> SpoolFile | None:
        try:
            return SpoolFile.open(lock, self._synchronous)
        except UnknownVersion as error:
            self.named.add(lock.path)
            lock.release()
            self._log.error(
                "records that wait are left to a gateway of another version",
                path=str(lock.path),
                reason=str(error),
            )
        except Damaged as error:
            self._set_aside(lock, error)
        except OSError:
            lock.release()
            raise
        return None

    def _rows(self, file: SpoolFile) -> list[tuple[int, CallRecord]] | None:
        try:
            return file.read()
        except Damaged as error:
            self._set_aside(file.leave(), error)
            return None

    def _set_aside(self, lock: Lock, error: Exception) -> None:
        self.named.add(lock.path)
        self._log.error(
            "a file of records that wait cannot be read, and is kept",
            path=str(set_aside(lock)),
            reason=str(error),
        )
