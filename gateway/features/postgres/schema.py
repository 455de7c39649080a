"""Applies the migrations that create all tables (`schema.sql`), each once, in order.

The tables are those of SQLite, with these differences:

- a run's key contains the day of its first commit (`DAY_BITS`), so that steps, their words and
  injections are partitioned by day and are removed by dropping a partition;
- `conversations` and `runs`, which are updated at every call, leave room in their pages for that;
- texts that are compared or sorted use the order of their bytes, as in SQLite.

Gateways of two versions use one database during an upgrade. So a change may add (a table, a column
with a default, an index): the version before it goes on. A change that takes something away is
marked `breaks_older`, ships one version after the last code that needs it, and makes versions that
do not know it refuse the database."""

from contextlib import suppress
from datetime import date, timedelta

import asyncpg

from gateway.stores.protocols import SchemaMismatch, StoreUnreachable
from gateway.stores.sql.migrations import migrations, of_deleted, say_migrated

# A run's key is its day since 1970 (UTC, by the database's clock) shifted by this, plus a number:
# about 69 billion runs before two could meet.
DAY_BITS = 36

# Every change a database needs, in order.
MIGRATIONS = migrations("gateway.features.postgres")

# What searches need besides: only a gateway that searches needs the extension pgvector.
VECTORS = """
CREATE EXTENSION IF NOT EXISTS vector;
CREATE TABLE IF NOT EXISTS pattern_vectors (
    space integer NOT NULL,
    pk bigint NOT NULL,
    tenant text COLLATE "C" NOT NULL,
    tier text COLLATE "C" NOT NULL,
    vector vector NOT NULL,
    PRIMARY KEY (space, pk)
);
CREATE INDEX IF NOT EXISTS pattern_vectors_by_scope ON pattern_vectors (space, tenant, tier);
"""
# Key of the advisory lock ("STGW") that lets one gateway at a time change the schema.
LOCK = 0x53544757
# Longest wait for another gateway that changes the schema, before something is said about it.
_TURN_S = 10
_CREATE = """
CREATE TABLE IF NOT EXISTS gateway_migrations (
    name text PRIMARY KEY,
    applied_at timestamptz NOT NULL DEFAULT now(),
    breaks_older boolean NOT NULL DEFAULT FALSE
)
"""

_APPLIED = "INSERT INTO gateway_migrations (name, breaks_older) VALUES ($1, $2)"

# Not `to_regclass`: that may answer from a cache which another gateway's commit has outdated.
_EXISTS = """
SELECT EXISTS (SELECT 1 FROM pg_class WHERE relname = $1 AND pg_table_is_visible(oid))
"""

PARTITIONED = ("steps", "injections", "result_words")
# Days for which partitions exist in advance. Rows of a day without one go to the default one.
DAYS_AHEAD = 7

_EPOCH = date(1970, 1, 1)
_LOCK_WAIT = "SET LOCAL lock_timeout = '2s'"
_PARTITION = f"""
{_LOCK_WAIT}; CREATE TABLE IF NOT EXISTS {{name}} PARTITION OF {{table}}
FOR VALUES FROM ({{first}}) TO ({{end}})
"""

# The day of the database's clock, since 1970, UTC.
TODAY = "floor(extract(epoch FROM now()) / 86400)::bigint"
_NOT_MADE = (
    asyncpg.LockNotAvailableError,
    asyncpg.CheckViolationError,
    asyncpg.DuplicateTableError,
    asyncpg.UniqueViolationError,  # another gateway is making it
)
_EXISTING = """
SELECT c.relname FROM pg_inherits AS i JOIN pg_class AS c ON c.oid = i.inhrelid
WHERE i.inhparent = to_regclass($1)
"""


async def migrate(connection: asyncpg.Connection, place: str) -> None:
    """Apply the missing changes. Raises: SchemaMismatch when the database has a breaking change
    that this version does not know, or tables of another application; StoreUnreachable while
    another gateway changes the schema."""
    names = {migration.name for migration in MIGRATIONS}
    exists = await connection.fetchval(_EXISTS, "gateway_migrations")
    if exists and names <= await _applied(connection, names, place):
        return
    async with connection.transaction():
        await take_turn(connection, place)
        if not await connection.fetchval(_EXISTS, "gateway_migrations"):
            if await connection.fetchval(_EXISTS, "conversations"):
                raise SchemaMismatch(
                    f"{place} has a table 'conversations' of another application; "
                    "give the gateway a database of its own"
                )
            await connection.execute(_CREATE)
        applied = await _applied(connection, names, place)
        missing = [migration for migration in MIGRATIONS if migration.name not in applied]
        if not missing:  # another gateway has applied them meanwhile
            return
        await connection.execute(";\n".join([migration.sql for migration in missing]))
        names_of = [(migration.name, migration.breaks_older) for migration in missing]
        await connection.executemany(_APPLIED, names_of)
    if applied:
        say_migrated(place, [each.name for each in missing], len(applied))


async def _applied(connection: asyncpg.Connection, known: set[str], place: str) -> set[str]:
    """The names of the changes that the database has. Raises: SchemaMismatch."""
    rows = await connection.fetch("SELECT name, breaks_older FROM gateway_migrations")
    unknown = [row for row in rows if row["name"] not in known]
    if newer := sorted(name for name, breaks in unknown if breaks or of_deleted(name)):
        raise SchemaMismatch(
            f"{place} was changed by a newer version of the gateway (it has {', '.join(newer)}); "
            "start that version, or use another database"
        )
    return {name for name, _ in rows}


async def take_turn(connection: asyncpg.Connection, place: str) -> None:
    """Be the one that changes the schema, until the transaction ends. Raises: StoreUnreachable when
    another one goes on with it for 10 s: it may have much to do."""
    await connection.execute(f"SET LOCAL lock_timeout = '{_TURN_S}s'")
    try:
        await connection.execute("SELECT pg_advisory_xact_lock($1)", LOCK)
    except asyncpg.LockNotAvailableError as error:
        raise StoreUnreachable(
            f"{place}: another gateway is changing its tables, for more than {_TURN_S} s now"
        ) from error
    await connection.execute("SET LOCAL lock_timeout TO DEFAULT")


async def add_partitions(connection: asyncpg.Connection) -> None:
    """Make the partitions of today and the next days, where they are missing. One that cannot be
    made, because the default partition has rows of its day or the table is locked, is left out: its
    rows are removed one by one some day."""
    today: int = await connection.fetchval(f"SELECT {TODAY}")
    for table in PARTITIONED:
        known = {row[0] for row in await connection.fetch(_EXISTING, table)}
        for day in range(today, today + DAYS_AHEAD):
            if _name(table, day) in known:
                continue
            statements = _PARTITION.format(
                name=_name(table, day),
                table=table,
                first=day << DAY_BITS,
                end=(day + 1) << DAY_BITS,
            )
            with suppress(*_NOT_MADE):
                await connection.execute(statements)  # one transaction


async def days_with_partitions(connection: asyncpg.Connection) -> list[int]:
    """The days, since 1970, of the partitions of steps, oldest first."""
    rows = await connection.fetch(_EXISTING, PARTITIONED[0])
    dated = [name.removeprefix(f"{PARTITIONED[0]}_") for (name,) in rows]
    return sorted((date.fromisoformat(d) - _EPOCH).days for d in dated if d.isdigit())


async def drop_partitions(connection: asyncpg.Connection, day: int) -> bool:
    """Drop the partitions of a day; False when a table is locked for too long."""
    try:
        async with connection.transaction():
            await connection.execute(_LOCK_WAIT)
            for table in PARTITIONED:
                name = _name(table, day)
                if await connection.fetchval("SELECT to_regclass($1) IS NOT NULL", name):
                    await connection.execute(f"ALTER TABLE {table} DETACH PARTITION {name}")
                    await connection.execute(f"DROP TABLE {name}")
    except asyncpg.LockNotAvailableError:
        return False
    return True


def _name(table: str, day: int) -> str:
    return f"{table}_{_EPOCH + timedelta(days=day):%Y%m%d}"
