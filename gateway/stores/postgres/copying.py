"""Copies the rows of another store into an empty PostgreSQL database, with COPY."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import asyncpg

from gateway.stores.postgres.database import Database
from gateway.stores.postgres.schema import DAY_BITS
from gateway.stores.postgres.text import stored_json, stored_text
from gateway.stores.protocols import StoreError

Progress = Callable[[int, int], None]
"""Called with the rows done, and how many there are in all."""

_KEYS: Mapping[str, Sequence[str]] = {
    "conversations": ("pk",),
    "heads": ("root", "digest", "conversation_pk", "kind"),
    "items": ("tenant", "id"),
    "runs": ("pk",),
    "steps": ("run_pk", "step_index"),
    "injections": ("run_pk", "step_index", "ordinal"),
    "raw_calls": ("run_pk", "step_index"),
    "answers": ("tenant", "id"),
    "patterns": ("pk",),
    "pattern_spaces": ("number",),
    "keys": ("pk",),
    "outcomes": ("pk",),
    "pattern_evidence": ("tenant", "pattern_id", "run_id", "step_index", "kind"),
    "pattern_decisions": ("run_id", "step_index", "pattern_id"),
    "pattern_posteriors": ("owner", "pattern_id", "version"),
    "jobs": ("pk",),
    "budget_accounts": ("budget", "subject"),
    "budget_reservations": ("budget", "subject", "claim"),
    "run_controls": ("subject",),
    "usage_by_hour": ("hour", "tenant", "agent", "model", "tags"),
    "alerts": ("id",),
    "alert_keys": ("key",),
    "alert_deliveries": ("alert_id", "sink"),
    "workload_runs": ("run_id",),
    "workload_models": ("tenant", "workload", "model"),
}
_JSON_OF_STEPS = ("readings", "call", "content")
"""Texts that are JSON: they need no other form than in a file, and are read without one."""

_COUNTED = ("conversations", "patterns", "keys", "outcomes", "jobs")
_LONG_S = 3600.0
_KINDS = """
SELECT attname, format_type(atttypid, NULL) FROM pg_attribute
WHERE attrelid = to_regclass($1) AND attnum > 0 AND NOT attisdropped
"""
_PUT_VECTORS = """
INSERT INTO pattern_vectors (space, pk, tenant, tier, vector)
SELECT $1, p.pk, p.tenant, p.tier, $3::float4[]::vector FROM patterns AS p WHERE p.pk = $2
ON CONFLICT DO NOTHING
"""


class Source(Protocol):
    """A store whose rows are copied: tables and columns with the names of the schema."""

    async def columns(self, table: str) -> list[str]: ...

    async def count(self, table: str) -> int: ...

    async def vectors(self) -> Sequence[tuple[int, str]]: ...

    async def batch(
        self, table: str, columns: Sequence[str], key: Sequence[str], after: Sequence[Any] | None
    ) -> list[tuple[Any, ...]]: ...


async def copy_all(
    source: Source, target: Database, progress: Progress, *, vectors: bool
) -> dict[str, int]:
    """Copy every table; the number of rows by table. All or nothing.

    Patterns that are copied without their `vectors` get new ones when a gateway searches them.
    Raises: StoreError when the target has conversations, runs or keys already.
    """
    total = sum([await source.count(table) for table in _KEYS])
    copied = dict.fromkeys(_KEYS, 0)

    async def work(connection: asyncpg.Connection) -> None:
        for table in ("conversations", "runs", "keys"):
            if await connection.fetchval(f"SELECT EXISTS (SELECT 1 FROM {table})"):
                raise StoreError(f"{target.settings.place} is not empty; copy to a new database")
        # What a gateway put there at its first start: the starter patterns.
        if vectors:
            await connection.execute("DELETE FROM pattern_vectors")
        await connection.execute("DELETE FROM patterns; DELETE FROM pattern_spaces")
        for table, key in _KEYS.items():
            async for rows, columns in _batches(source, connection, table, key):
                await connection.copy_records_to_table(table, records=rows, columns=columns)
                copied[table] += len(rows)
                progress(sum(copied.values()), total)
        if vectors:
            await _copy_vectors(source, connection)
        await _set_counters(connection)

    await target.transact(work, limit_s=_LONG_S)
    return copied


async def _batches(
    source: Source, connection: asyncpg.Connection, table: str, key: Sequence[str]
) -> Any:
    kinds = dict(tuple(row) for row in await connection.fetch(_KINDS, table))
    if table == "steps":
        kinds |= dict.fromkeys(_JSON_OF_STEPS, "json")
    columns = [name for name in await source.columns(table) if name in kinds]
    places = [columns.index(name) for name in key]
    after: Sequence[Any] | None = None
    while rows := await source.batch(table, columns, key, after):
        after = [rows[-1][place] for place in places]
        yield [_converted(row, columns, kinds) for row in rows], columns


def _converted(
    row: Sequence[Any], columns: Sequence[str], kinds: Mapping[str, str]
) -> tuple[Any, ...]:
    values: list[Any] = []
    for name, value in zip(columns, row, strict=True):
        if value is None:
            values.append(None)
        elif kinds[name] == "boolean":
            values.append(bool(value))
        elif kinds[name] == "double precision":
            values.append(float(value))
        elif kinds[name] == "jsonb":
            values.append(stored_json(value))
        else:
            is_text = isinstance(value, str) and kinds[name] != "json"
            values.append(stored_text(value) if is_text else value)
    return tuple(values)


async def _copy_vectors(source: Source, connection: asyncpg.Connection) -> None:
    for number, table in await source.vectors():
        after: Sequence[Any] | None = None
        while rows := await source.batch(table, ("pk", "vector"), ("pk",), after):
            after = rows[-1][:1]
            found = [(number, pk, array("f", blob)) for pk, blob in rows]
            await connection.executemany(_PUT_VECTORS, found)


async def _set_counters(connection: asyncpg.Connection) -> None:
    """New rows get numbers above those that were copied. Keys of copied runs are small: their steps
    are in the default partition, and are removed one by one."""
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
