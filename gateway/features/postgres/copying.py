"""Copies the rows of a SQLite file into an empty PostgreSQL database, with COPY."""

from array import array
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

import asyncpg

from gateway.backends import Progress
from gateway.data_files import read_toml
from gateway.features.postgres.database import Database as PostgresDatabase
from gateway.features.postgres.schema import DAY_BITS
from gateway.features.postgres.statement import stored_json, stored_text
from gateway.stores.protocols import StoreError
from gateway.stores.sql.migrations import tables_of_features
from gateway.stores.sqlite.database import Database as SQLiteDatabase

_BATCH = 1000
_TABLES = (*read_toml(__package__, "copying.toml")["tables"], *tables_of_features())
# Texts that are JSON: they need no other form than in a file.
_JSON_OF_STEPS = ("readings", "call", "content")

_COUNTED = [t for t in ("conversations", "patterns", "keys", "outcomes", "jobs") if t in _TABLES]
# Tables with rows that no gateway writes by itself.
_WRITTEN = {"conversations", "runs", "keys"}.intersection(_TABLES)
_LONG_S = 3600.0
_KINDS = """
SELECT attname, format_type(atttypid, NULL) FROM pg_attribute
WHERE attrelid = to_regclass($1) AND attnum > 0 AND NOT attisdropped
"""
_PUT_VECTOR = """
INSERT INTO pattern_vectors (space, pk, tenant, tier, vector)
VALUES ($1, $2, $3, $4, $5::float4[]::vector)
"""


async def copy_all(
    source: SQLiteDatabase, target: PostgresDatabase, progress: Progress, *, vectors: bool
) -> dict[str, int]:
    """Copy every table, all or nothing. Returns the number of rows by table. Patterns that are
    copied without their `vectors` get new ones when a gateway searches them. Raises: StoreError
    when the target has conversations, runs or keys already."""
    total = sum([(await _read(source, f"SELECT count(*) FROM {name}"))[0][0] for name in _TABLES])
    copied = dict.fromkeys(_TABLES, 0)

    async def work(connection: asyncpg.Connection) -> None:
        for table in _WRITTEN:
            if await connection.fetchval(f"SELECT EXISTS (SELECT 1 FROM {table})"):
                raise StoreError(f"{target.settings.place} is not empty; copy to a new database")
        # What a gateway put there at its first start: the starter patterns.
        if vectors:
            await connection.execute("DELETE FROM pattern_vectors")
        await connection.execute("DELETE FROM patterns; DELETE FROM pattern_spaces")
        for table in _TABLES:
            kinds = dict(map(tuple, await connection.fetch(_KINDS, table)))
            if table == "steps":
                kinds |= dict.fromkeys(_JSON_OF_STEPS, "json")
            known = await _read(source, f"SELECT name, pk FROM pragma_table_info('{table}')")
            columns = [name for name, _ in known if name in kinds]
            key = [name for _, name in sorted((place, name) for name, place in known if place)]
            async for rows in _batches(source, table, columns, key=key):
                records = [_converted(row, [kinds[name] for name in columns]) for row in rows]
                await connection.copy_records_to_table(table, records=records, columns=columns)
                copied[table] += len(rows)
                progress(sum(copied.values()), total)
        if vectors:
            parts = ("space", "pk", "tenant", "tier", "vector")
            async for rows in _batches(source, "pattern_vectors", parts, key=("space", "pk")):
                found = [(*row, array("f", blob)) for *row, blob in rows]
                await connection.executemany(_PUT_VECTOR, found)
        await _set_counters(connection)

    await target.transact(work, limit_s=_LONG_S)
    return copied


async def _read(source: SQLiteDatabase, sql: str, values: Sequence[Any] = ()) -> list[Any]:
    return await source.read(lambda c: c.execute(sql, values).fetchall())


async def _batches(
    source: SQLiteDatabase, table: str, columns: Sequence[str], key: Sequence[str]
) -> AsyncIterator[list[Any]]:
    """The rows of a table, a batch at a time, in the order of its key."""
    chosen = ", ".join([*columns, *key])
    order = ", ".join(key)
    after = ""
    values = list[Any]()
    while rows := await _read(
        source, f"SELECT {chosen} FROM {table} {after} ORDER BY {order} LIMIT {_BATCH}", values
    ):
        yield [row[: len(columns)] for row in rows]
        after = f"WHERE ({order}) > ({', '.join('?' * len(key))})"
        values = rows[-1][len(columns) :]


def _converted(row: Sequence[Any], kinds: Sequence[str]) -> tuple[Any, ...]:
    values = [
        None if v is None else _CONVERT.get(k, _text)(v) for v, k in zip(row, kinds, strict=True)
    ]
    return tuple(values)


def _text(value: Any) -> Any:
    if isinstance(value, str):
        return stored_text(value)
    return value


_CONVERT: Mapping[str, Callable[[Any], Any]] = {
    "boolean": bool,
    "double precision": float,
    "json": str,
    "jsonb": stored_json,
}


async def _set_counters(connection: asyncpg.Connection) -> None:
    """Set the counters so that new rows get numbers above the copied ones. Copied runs have
    small keys: their steps are in the default partition, and are removed one by one."""
    for table in _COUNTED:
        await connection.execute(
            f"SELECT setval(pg_get_serial_sequence('{table}', 'pk'), "
            f"(SELECT coalesce(max(pk), 0) + 1 FROM {table}))"
        )
    await connection.execute(
        "SELECT setval(pg_get_serial_sequence('pattern_spaces', 'number'), "
        "(SELECT coalesce(max(number), 0) + 1 FROM pattern_spaces))"
    )
    highest = await connection.fetchval("SELECT coalesce(max(pk), 0) FROM runs")
    if highest >= 1 << DAY_BITS:
        raise StoreError("the runs have keys of another store")
    await connection.execute("SELECT setval('run_numbers', $1)", highest + 1)
