"""Open connections, and say in our words what SQLite says in its own."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TypeVar

import apsw

from gateway.stores.base import (
    SchemaMismatch,
    StoreBusy,
    StoreCorrupt,
    StoreError,
    StoreFull,
    StoreReadOnly,
    StoreUnavailable,
)
from gateway.stores.settings import StorageSettings

T = TypeVar("T")

ConnectionHook = Callable[[apsw.Connection], None]
"""Prepares a connection just opened: loads an extension, registers a function."""

# "STGW" in the file's header, so that a file of ours is told from any other SQLite database.
APPLICATION_ID = 0x53544757

# A write-ahead log that once grew is cut back to this when it is next emptied.
JOURNAL_SIZE_LIMIT_BYTES = 64 * 1024 * 1024

_MEANINGS: tuple[tuple[type[Exception], type[StoreError], str], ...] = (
    (apsw.BusyError, StoreBusy, "is locked by another process"),
    (apsw.LockedError, StoreBusy, "is locked"),
    (apsw.FullError, StoreFull, "cannot grow: the disk or the database is full"),
    (apsw.ReadOnlyError, StoreReadOnly, "is read-only"),
    (apsw.PermissionsError, StoreReadOnly, "may not be written"),
    (apsw.NotADBError, StoreCorrupt, "is not an SQLite database"),
    (apsw.CorruptError, StoreCorrupt, "is damaged"),
    (apsw.CantOpenError, StoreUnavailable, "cannot be opened"),
    (apsw.IOError, StoreUnavailable, "cannot be read or written"),
    (apsw.NoMemError, StoreUnavailable, "is out of memory"),
)


def translate(error: BaseException, path: str) -> BaseException:
    """The StoreError that says what `error` means for `path`; other errors stay themselves."""
    if not isinstance(error, apsw.Error):
        return error
    meaning, words = next(
        ((meaning, words) for kind, meaning, words in _MEANINGS if isinstance(error, kind)),
        (StoreError, "refused the operation"),
    )
    if meaning is StoreUnavailable and (forbidden := _unwritable(path)):
        meaning, words = StoreReadOnly, forbidden
    translated = meaning(f"{path!r} {words} ({error})")
    translated.__cause__ = error
    return translated


def open_writer(settings: StorageSettings, hooks: Iterable[ConnectionHook]) -> apsw.Connection:
    """The one connection that writes; makes the file, and its directory, when there is none.

    Raises: apsw.Error, OSError, SchemaMismatch.
    """
    _create_private(settings.path)
    connection = apsw.Connection(
        settings.path, flags=apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE
    )
    with _closing_on_error(connection):
        connection.set_busy_timeout(settings.busy_timeout_ms)
        _claim(connection, settings.path)
        if connection.pragma("journal_mode", "wal") != "wal":
            raise StoreUnavailable(f"{settings.path!r} is on a file system without shared memory")
        connection.pragma("synchronous", settings.synchronous)
        connection.pragma("journal_size_limit", JOURNAL_SIZE_LIMIT_BYTES)
        _prepare(connection, settings, hooks)
    return connection


def open_reader(settings: StorageSettings, hooks: Iterable[ConnectionHook]) -> apsw.Connection:
    """A connection that cannot write. Raises: apsw.Error."""
    connection = apsw.Connection(settings.path, flags=apsw.SQLITE_OPEN_READONLY)
    with _closing_on_error(connection):
        connection.set_busy_timeout(settings.busy_timeout_ms)
        _prepare(connection, settings, hooks)
    return connection


def one_view(work: Callable[[apsw.Connection], T]) -> Callable[[apsw.Connection], T]:
    """`work`, all of whose statements see the data of one moment."""

    def within(connection: apsw.Connection) -> T:
        connection.execute("BEGIN")
        try:
            return work(connection)
        finally:
            if connection.in_transaction:  # SQLite ends it itself on some errors
                connection.execute("COMMIT")

    return within


def _prepare(
    connection: apsw.Connection, settings: StorageSettings, hooks: Iterable[ConnectionHook]
) -> None:
    connection.pragma("cache_size", -1024 * settings.cache_mb)
    connection.pragma("temp_store", "memory")
    for hook in hooks:
        hook(connection)


def _unwritable(path: str) -> str:
    """What keeps the file from being written; empty when nothing does."""
    if os.path.exists(path) and not os.access(path, os.W_OK):
        return "may not be written"
    # SQLite keeps its log beside the file.
    return "" if os.access(Path(path).parent, os.W_OK) else "is in a directory that is read-only"


def _create_private(path: str) -> None:
    # SQLite gives a new file the process's default mode; this one holds what agents said.
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))


def _claim(connection: apsw.Connection, path: str) -> None:
    # Asked first: who makes the file meanwhile signs it before anything else, so what is in it by
    # now and is unsigned a moment later is nobody's of ours.
    occupied = connection.execute("SELECT count(*) FROM sqlite_schema").get
    if connection.pragma("application_id") == APPLICATION_ID:
        return
    if occupied:
        raise SchemaMismatch(f"{path!r} is the database of another application")
    connection.pragma("application_id", APPLICATION_ID)


@contextlib.contextmanager
def _closing_on_error(connection: apsw.Connection) -> Iterator[None]:
    try:
        yield
    except BaseException:
        connection.close()
        raise
