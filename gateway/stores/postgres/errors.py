"""Turns the errors of PostgreSQL and of its driver into the store's, one line each."""

from __future__ import annotations

import asyncpg

from gateway.config.storage import StorageSettings
from gateway.stores.protocols import (
    SchemaMismatch,
    StoreBusy,
    StoreCorrupt,
    StoreError,
    StoreFull,
    StoreReadOnly,
    StoreReplaced,
    StoreUnavailable,
    StoreUnreachable,
)

# The driver answers with `InternalClientError` when a server dies within a statement.
_LOST = (asyncpg.InterfaceError, asyncpg.InternalClientError)

_MEANINGS: tuple[tuple[tuple[type[BaseException], ...], type[StoreError], str], ...] = (
    (
        (asyncpg.InvalidPasswordError, asyncpg.InvalidAuthorizationSpecificationError),
        StoreUnavailable,
        "refuses the user or the password",
    ),
    (
        (asyncpg.InvalidCatalogNameError,),
        StoreUnavailable,
        "does not exist on the server; create it, or correct the URL",
    ),
    (
        (asyncpg.TooManyConnectionsError,),
        StoreUnreachable,
        "has no free connection; raise max_connections, or use fewer gateways",
    ),
    ((asyncpg.DiskFullError, asyncpg.OutOfMemoryError), StoreFull, "has no room"),
    ((asyncpg.ReadOnlySQLTransactionError,), StoreReadOnly, "is read-only"),
    (
        # The second: this user may use no schema that `search_path` names, or there is none.
        (asyncpg.InsufficientPrivilegeError, asyncpg.InvalidSchemaNameError),
        StoreReadOnly,
        "may not be written by this user; grant it the rights of the database's owner",
    ),
    (
        (asyncpg.TransactionRollbackError, asyncpg.LockNotAvailableError),
        StoreBusy,
        "is locked by another gateway",
    ),
    (
        # A pooler that lends connections for one transaction, and keeps no prepared statements.
        (asyncpg.InvalidSQLStatementNameError, asyncpg.DuplicatePreparedStatementError),
        StoreUnavailable,
        "is behind a pooler that keeps no prepared statements; set storage.prepared_statements: "
        "false, and storage.listen_url to the database itself",
    ),
    ((asyncpg.UndefinedTableError,), StoreReplaced, "has lost its tables"),
    (
        (asyncpg.SyntaxOrAccessError, asyncpg.InvalidCachedStatementError),
        SchemaMismatch,
        "does not have the tables that this version of the gateway writes",
    ),
    ((asyncpg.DataCorruptedError, asyncpg.IndexCorruptedError), StoreCorrupt, "is damaged"),
    ((asyncpg.QueryCanceledError, TimeoutError), StoreUnreachable, "does not answer in time"),
    (
        (asyncpg.CannotConnectNowError, asyncpg.OperatorInterventionError),
        StoreUnreachable,
        "is stopping or starting",
    ),
    ((asyncpg.InsufficientResourcesError,), StoreUnavailable, "has too few resources"),
    ((asyncpg.PostgresSystemError,), StoreUnavailable, "cannot use its disk"),
    ((asyncpg.InvalidTransactionStateError,), StoreUnreachable, "has ended the transaction"),
    (
        (*_LOST, asyncpg.PostgresConnectionError, ConnectionError, OSError),
        StoreUnreachable,
        "cannot be reached",
    ),
)

_DRIVER_ERRORS = (asyncpg.PostgresError, *_LOST, OSError, TimeoutError)


def translate(error: BaseException, settings: StorageSettings) -> BaseException:
    """The StoreError for an error of the driver or the server; any other error is unchanged.

    The text never contains the password: neither the server nor the driver repeats it.
    """
    if isinstance(error, StoreError) or not isinstance(error, _DRIVER_ERRORS):
        return error
    meaning, words = next(
        ((meaning, words) for kinds, meaning, words in _MEANINGS if isinstance(error, kinds)),
        (StoreError, "refused the operation"),
    )
    # Without the server's hints, which are for who writes a program.
    reason = " ".join(str(error).partition("\nHINT:")[0].split()) or type(error).__name__
    translated = meaning(f"{settings.place} {words} ({reason})")
    translated.__cause__ = error
    return translated


def is_about_one_record(error: Exception) -> bool:
    """Whether a group failed for what one of its records contains: for anything but the errors that
    are known to be about the server."""
    return not isinstance(error, StoreError) or type(error) is StoreError


def breaks_connection(error: BaseException) -> bool:
    """Whether the connection can no longer be used, or it is not known whether it can."""
    if isinstance(error, asyncpg.PostgresError):
        return isinstance(
            error, asyncpg.PostgresConnectionError | asyncpg.OperatorInterventionError
        )
    return not isinstance(error, ValueError | TypeError | StoreError)
