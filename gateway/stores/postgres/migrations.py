"""Changes of the schema, only ever appended, each applied once to every database in order.

Gateways of two versions use one database during an upgrade. So a change may add (a table, a column
with a default, an index): the version before it goes on. A change that takes something away is
marked `breaks_older`, ships one version after the last code that needs it, and makes versions that
do not know it refuse the database.
"""

from __future__ import annotations

from collections.abc import Sequence

import asyncpg

from gateway.stores.protocols import SchemaMismatch, StoreUnreachable
from gateway.stores.sql.tables import Migration

LOCK = 0x53544757
"""Key of the advisory lock ("STGW") that lets one gateway at a time change the schema."""

_TURN_S = 10
"""Longest wait for another gateway that changes the schema, before something is said about it."""

_CREATE = """
CREATE TABLE IF NOT EXISTS gateway_migrations (
    name text PRIMARY KEY,
    applied_at timestamptz NOT NULL DEFAULT now(),
    breaks_older boolean NOT NULL DEFAULT FALSE
)
"""

# Not `to_regclass`: that may answer from a cache which another gateway's commit has outdated.
_EXISTS = """
SELECT EXISTS (SELECT 1 FROM pg_class WHERE relname = $1 AND pg_table_is_visible(oid))
"""


async def migrate(
    connection: asyncpg.Connection, migrations: Sequence[Migration], place: str
) -> tuple[str, ...]:
    """Apply the missing changes and return their names.

    Raises: SchemaMismatch when the database has a breaking change that this version does not know,
    or tables of another application; StoreUnreachable while another gateway changes the schema.
    """
    applied = await _applied(connection)
    if applied is not None:
        _check(applied, migrations, place)
        if not [m for m in migrations if m.name not in applied]:
            return ()
    async with connection.transaction():
        await take_turn(connection, place)
        applied = await _applied(connection)
        if applied is None:
            await _refuse_foreign(connection, place)
            await connection.execute(_CREATE)
            applied = {}
        _check(applied, migrations, place)
        return tuple([m.name for m in migrations if await _apply_once(connection, m, applied)])


async def take_turn(connection: asyncpg.Connection, place: str) -> None:
    """Be the one that changes the schema, until the transaction ends.

    Raises: StoreUnreachable when another one goes on with it for 10 s: it may have much to do.
    """
    await connection.execute(f"SET LOCAL lock_timeout = '{_TURN_S}s'")
    try:
        await connection.execute("SELECT pg_advisory_xact_lock($1)", LOCK)
    except asyncpg.LockNotAvailableError as error:
        raise StoreUnreachable(
            f"{place}: another gateway is changing its tables, for more than {_TURN_S} s now"
        ) from error
    await connection.execute("SET LOCAL lock_timeout TO DEFAULT")


async def _applied(connection: asyncpg.Connection) -> dict[str, bool] | None:
    """Name -> whether it breaks older versions; None without a table of migrations."""
    if not await connection.fetchval(_EXISTS, "gateway_migrations"):
        return None
    rows = await connection.fetch("SELECT name, breaks_older FROM gateway_migrations")
    return dict(tuple(row) for row in rows)


def _check(applied: dict[str, bool], migrations: Sequence[Migration], place: str) -> None:
    known = {migration.name for migration in migrations}
    newer = sorted(name for name, breaks in applied.items() if breaks and name not in known)
    if newer:
        raise SchemaMismatch(
            f"{place} was changed by a newer version of the gateway (it has {', '.join(newer)}); "
            "start that version, or use another database"
        )


async def _refuse_foreign(connection: asyncpg.Connection, place: str) -> None:
    if await connection.fetchval(_EXISTS, "conversations"):
        raise SchemaMismatch(
            f"{place} has a table 'conversations' of another application; "
            "give the gateway a database of its own"
        )


async def _apply_once(
    connection: asyncpg.Connection, migration: Migration, applied: dict[str, bool]
) -> bool:
    if migration.name in applied:
        return False
    await connection.execute(migration.sql)
    await connection.execute(
        "INSERT INTO gateway_migrations (name, breaks_older) VALUES ($1, $2)",
        migration.name,
        migration.breaks_older,
    )
    return True
