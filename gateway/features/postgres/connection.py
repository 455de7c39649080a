"""One connection at a time: opened when it is needed, given up when it fails."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from hashlib import blake2b

import asyncpg

from gateway.config.storage import StorageSettings
from gateway.features.postgres.errors import breaks_connection, refused, translate
from gateway.features.postgres.schema import VECTORS, add_partitions, migrate, take_turn
from gateway.stores.protocols import SchemaMismatch, StoreUnavailable
from gateway.stores.time_limits import TimeLimits
from gateway.values import T

MIN_VERSION = 14  # the oldest PostgreSQL that is supported, by its makers too when this was written
# Longest wait for a connection, and for the answer to a statement; then it is given up.
CONNECT_S = 5.0
STATEMENT_S = 10.0

_STATEMENTS_CACHED = 128

# Whatever an administrator has set for the user or the database: in a stricter isolation gateways
# that write at the same time make each other's statements fail, where here they wait.
_OWN_SETTINGS = {"default_transaction_isolation": "read committed"}

_STATE = """
SELECT current_setting('server_encoding'), current_setting('transaction_read_only') = 'on'
"""
_CONNECT_ERRORS = (
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    OSError,
    TimeoutError,
    ValueError,
)
# Another one for a copy of the database than for the original.
_MADE = """
SELECT min(applied_at)::text, current_database()::text,
    (SELECT oid::bigint FROM pg_database WHERE datname = current_database())
FROM gateway_migrations
"""
# Of a pooler: it lends a server's connection, and cannot begin it with a setting of the client's.
_NOT_TAKEN = "unsupported startup parameter"


async def connect(settings: StorageSettings, url: str | None = None) -> asyncpg.Connection:
    """A new connection to `url`, or to `settings.url`. Raises: StoreError."""
    dsn = url or settings.url
    assert dsn is not None
    try:
        try:
            return await _connect(settings, dsn, **_OWN_SETTINGS)
        except asyncpg.PostgresError as error:
            if _NOT_TAKEN not in str(error):
                raise
            return await _connect(settings, dsn)
    except _CONNECT_ERRORS as error:
        raise refused(error, dsn, settings) from error


async def _connect(settings: StorageSettings, dsn: str, **own: str) -> asyncpg.Connection:
    return await asyncpg.connect(
        dsn,
        timeout=CONNECT_S,
        # A pooler in transaction mode gives each transaction another server connection, which
        # may not have the statements that were prepared on this one.
        statement_cache_size=_STATEMENTS_CACHED if settings.prepared_statements else 0,
        server_settings={"application_name": "gateway", **own},
    )


async def prepare(settings: StorageSettings, *, vectors: bool) -> str:
    """Check the server and migrate the schema; the database's identity. Raises: StoreError."""
    connection = await connect(settings)
    try:
        version = connection.get_server_version()
        if version.major < MIN_VERSION:
            raise SchemaMismatch(
                f"{settings.place} is PostgreSQL {version.major}; "
                f"the gateway needs {MIN_VERSION} or newer"
            )
        encoding, read_only = await connection.fetchrow(_STATE)
        if encoding != "UTF8":
            raise SchemaMismatch(
                f"{settings.place} keeps its texts as {encoding}, which has not all characters; "
                "create it WITH ENCODING 'UTF8' TEMPLATE template0"
            )
        if read_only:
            # The error that a write would raise: a standby, or a database that was set to this.
            raise asyncpg.ReadOnlySQLTransactionError("it may be a standby server")
        await migrate(connection, settings.place)
        await add_partitions(connection)
        if vectors:
            await _prepare_vectors(connection, settings)
        made = await connection.fetchrow(_MADE)
    except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError) as error:
        raise translate(error, settings) from error
    finally:
        await _close(connection)
    return blake2b(repr(tuple(made)).encode(), digest_size=8).hexdigest()


async def _prepare_vectors(connection: asyncpg.Connection, settings: StorageSettings) -> None:
    """Create the extension pgvector and what needs it. Raises: StoreUnavailable."""
    if await connection.fetchval("SELECT to_regclass('pattern_vectors')") is not None:
        return
    try:
        async with connection.transaction():
            await take_turn(connection, settings.place)
            await connection.execute(VECTORS)
    except (asyncpg.FeatureNotSupportedError, asyncpg.UndefinedFileError) as error:
        raise StoreUnavailable(
            f"{settings.place} has no extension pgvector, which the pattern store needs; install "
            "it on the server, or set etraces.enabled: false"
        ) from error
    except asyncpg.InsufficientPrivilegeError as error:
        raise StoreUnavailable(
            f"{settings.place}: this user may not create the extension pgvector; let an "
            "administrator run CREATE EXTENSION vector in the database"
        ) from error


async def _close(connection: asyncpg.Connection) -> None:
    with suppress(*_CONNECT_ERRORS):
        await connection.close(timeout=CONNECT_S)


class Slot:
    """Room for one connection, which one piece of work uses at a time."""

    def __init__(self, settings: StorageSettings):
        self._settings = settings
        self._connection: asyncpg.Connection | None = None
        self._lock = asyncio.Lock()
        self._limits = TimeLimits()

    async def run(
        self, work: Callable[[asyncpg.Connection], Awaitable[T]], limit_s: float = STATEMENT_S
    ) -> T:
        """The result of one piece of work on the connection, of at most `limit_s`. After an error
        that is not about the data, or when the work is cancelled, it is dropped. Raises: StoreError
        for errors of the server and the driver; others as they are."""
        async with self._lock:
            connection = self._connection
            if connection is None or connection.is_closed():
                connection = self._connection = await connect(self._settings)
            try:
                with self._limits.within(limit_s):
                    return await work(connection)
            except BaseException as error:
                if breaks_connection(error):
                    connection.terminate()
                    self._connection = None
                translated = translate(error, self._settings)
                if translated is error:
                    raise
                raise translated from error

    async def close(self) -> None:
        """Wait for the work in progress, then close the connection."""
        async with self._lock:
            connection = self._connection
            self._connection = None
            if connection is not None and not connection.is_closed():
                await _close(connection)
