"""Changes of the schema, only ever appended, each applied once to every file in order."""

from __future__ import annotations

import time
from collections.abc import Sequence

import apsw

from gateway.stores.protocols import SchemaMismatch
from gateway.stores.sql.tables import Migration


def migrate(
    connection: apsw.Connection, migrations: Sequence[Migration], path: str
) -> tuple[str, ...]:
    """Apply the missing changes and return their names.

    Raises: SchemaMismatch when the file has a change that this version does not know.
    """
    connection.execute(
        "CREATE TABLE IF NOT EXISTS migrations (name TEXT PRIMARY KEY, applied_at REAL NOT NULL)"
    )
    unknown = _applied(connection) - {migration.name for migration in migrations}
    if unknown:
        raise SchemaMismatch(
            f"{path!r} was written by a newer version of the gateway (it has "
            f"{', '.join(sorted(unknown))}); start that version, or use another file"
        )
    # A file that lacks nothing is opened while another process holds the write lock.
    missing = pending(connection, migrations)
    return tuple(m.name for m in migrations if m.name in missing and _apply_once(connection, m))


def pending(connection: apsw.Connection, migrations: Sequence[Migration]) -> tuple[str, ...]:
    """The names of the changes that the file lacks."""
    done = _applied(connection)
    return tuple(migration.name for migration in migrations if migration.name not in done)


def _applied(connection: apsw.Connection) -> set[str]:
    return {name for (name,) in connection.execute("SELECT name FROM migrations")}


def _apply_once(connection: apsw.Connection, migration: Migration) -> bool:
    # Two processes may open a new file at once: the check needs the write lock.
    connection.execute("BEGIN IMMEDIATE")
    try:
        missing = migration.name not in _applied(connection)
        if missing:
            connection.execute(migration.sql)
            connection.execute(
                "INSERT INTO migrations (name, applied_at) VALUES (?, ?)",
                (migration.name, time.time()),
            )
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    return missing
