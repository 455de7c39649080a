"""Connections to an SQLite database."""

import ctypes
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from pathlib import Path
from uuid import uuid4

import apsw

from gateway.config.storage import StorageSettings
from gateway.stores.protocols import StoreUnavailable
from gateway.stores.sqlite.files import claim, create_private, locked
from gateway.values import T

# Prepares a newly opened connection: loads an extension, registers a function.
ConnectionHook = Callable[[apsw.Connection], None]

# A write-ahead log that has grown beyond this is truncated to it when it is next emptied.
JOURNAL_SIZE_LIMIT_BYTES = 64 * 1024 * 1024

_CREATE = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE

# Most an in-memory database can hold: SQLite allocates it as one block of less than 2 GiB.
MEMORY_LIMIT_BYTES = 2**31 - 2**20

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


def open_all(
    settings: StorageSettings, hooks: Iterable[ConnectionHook]
) -> Iterator[apsw.Connection]:
    """The connection that writes, then `settings.reader_threads` that cannot. Raises: apsw.Error,
    OSError, SchemaMismatch."""
    path = settings.path
    flags = apsw.SQLITE_OPEN_READONLY
    if settings.in_memory:
        # A new name each time: two gateways in one process do not share their data.
        path = f"file:/gateway-{uuid4().hex}?vfs=memdb"
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
        # SQLite waits for other locks, but not while somebody else opens a new file.
        with locked(Path(settings.path).parent):
            claim(connection, settings.path)
            mode = connection.pragma("journal_mode", "wal")
        if mode != "wal":
            raise StoreUnavailable(f"{settings.path!r} is on a file system without shared memory")
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
        raise StoreUnavailable(
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
