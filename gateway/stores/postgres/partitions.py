"""The daily partitions of the tables that grow: made ahead, dropped when they are old."""

from __future__ import annotations

from contextlib import suppress
from datetime import date, timedelta

import asyncpg

from gateway.stores.postgres.schema import DAY_BITS

PARTITIONED = ("steps", "injections")
DAYS_AHEAD = 7
"""Days for which partitions exist in advance. Rows of a day without one go to the default one."""

_EPOCH = date(1970, 1, 1)
_LOCK_WAIT = "SET LOCAL lock_timeout = '2s'"

TODAY = "floor(extract(epoch FROM now()) / 86400)::bigint"
"""The day of the database's clock, since 1970, UTC."""

_NOT_MADE = (
    *(asyncpg.LockNotAvailableError, asyncpg.CheckViolationError),
    *(asyncpg.DuplicateTableError, asyncpg.UniqueViolationError),  # another gateway is making it
)
_EXISTING = """
SELECT c.relname FROM pg_inherits AS i JOIN pg_class AS c ON c.oid = i.inhrelid
WHERE i.inhparent = to_regclass($1)
"""


async def add_partitions(connection: asyncpg.Connection) -> None:
    """Make the partitions of today and the next days, where they are missing.

    One that cannot be made, because the default partition has rows of its day or the table is
    locked, is left out: its rows are removed one by one some day.
    """
    today: int = await connection.fetchval(f"SELECT {TODAY}")
    for table in PARTITIONED:
        known = {row[0] for row in await connection.fetch(_EXISTING, table)}
        for day in range(today, today + DAYS_AHEAD):
            if _name(table, day) in known:
                continue
            with suppress(*_NOT_MADE):
                async with connection.transaction():
                    await connection.execute(_LOCK_WAIT)
                    await connection.execute(
                        f"CREATE TABLE IF NOT EXISTS {_name(table, day)} PARTITION OF {table} "
                        f"FOR VALUES FROM ({day << DAY_BITS}) TO ({(day + 1) << DAY_BITS})"
                    )


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
