"""Applies the migrations that create all tables (`schema.sql`) to a file, each once, in order."""

import time
from collections.abc import Sequence

import apsw

from gateway.stores.protocols import SchemaMismatch
from gateway.stores.sql.tables import Migration, migrations

_TYPES = {
    **dict.fromkeys(("text", "name", "json"), "TEXT"),
    **dict.fromkeys(("integer", "boolean"), "INTEGER"),
    "real": "REAL",
    "blob": "BLOB",
    "key": "INTEGER PRIMARY KEY AUTOINCREMENT",
    **dict.fromkeys(("by_key", "often_changed"), " WITHOUT ROWID"),
}

MIGRATIONS = migrations("gateway.stores.sqlite", _TYPES)
"""Every change a file needs, in order."""


def migrate(connection: apsw.Connection, migrations: Sequence[Migration], path: str) -> None:
    """Apply the missing changes. Raises: SchemaMismatch when the file has a change that this
    version does not know."""
    connection.execute(
        "CREATE TABLE IF NOT EXISTS migrations (name TEXT PRIMARY KEY, applied_at REAL NOT NULL)"
    )
    applied = applied_to(connection)
    if unknown := applied - {migration.name for migration in migrations}:
        raise SchemaMismatch(
            f"{path!r} was written by a newer version of the gateway (it has "
            f"{', '.join(sorted(unknown))}); start that version, or use another file"
        )
    # A file that lacks nothing is opened while another process holds the write lock.
    for migration in migrations:
        if migration.name not in applied:
            _apply_once(migration, connection)


def applied_to(connection: apsw.Connection) -> set[str]:
    """The names of the changes that the file has."""
    return {name for (name,) in connection.execute("SELECT name FROM migrations")}


def _apply_once(migration: Migration, connection: apsw.Connection) -> None:
    # Two processes may open a new file at once: the check needs the write lock.
    connection.execute("BEGIN IMMEDIATE")
    try:
        if migration.name not in applied_to(connection):
            connection.execute(migration.sql)
            applied = (migration.name, time.time())
            connection.execute("INSERT INTO migrations (name, applied_at) VALUES (?, ?)", applied)
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
