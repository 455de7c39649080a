"""The PostgreSQL engine: numbers the values of a statement, and treats what its texts lack."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any, TypeVar

import asyncpg

from gateway.stores.guard.spool import size_of
from gateway.stores.postgres.connection import STATEMENT_S
from gateway.stores.postgres.database import PATIENT_S, Database
from gateway.stores.postgres.retention import PostgresUpkeep
from gateway.stores.postgres.text import read_json, read_text, stored_text
from gateway.stores.postgres.vectors import PostgresVectors
from gateway.stores.protocols import MAX_HEADS, StoreError
from gateway.stores.records import CallRecord
from gateway.stores.redact import redaction
from gateway.stores.sql.engine import Connection, Dialect, Engine, Row, VectorIndex, Work

T = TypeVar("T")

_NAME = re.compile(r"(?<!:):([a-z_][a-z_0-9]*)")
_JSON = frozenset(("readings", "call", "content", "fields", "choice"))
"""Columns with texts of JSON, which writes a NUL as an escape: stored and read as they are."""

_SEARCHED_JSON = frozenset(("tags", "counts"))
_MANY = 200
"""Rows that are read in a thread: a thousand runs take as long as ten requests."""

# A thread costs more than it saves for a record this small.
_SMALL_BYTES = 16 * 1024

_LOCK = """
SELECT pg_advisory_xact_lock(key) FROM (
    SELECT DISTINCT hashtextextended(name, $2) AS key FROM unnest($1::text[]) AS name ORDER BY 1
) AS keys
"""

POSTGRES = Dialect(
    bytewise='COLLATE "C"',
    find_heads=f"""
        SELECT h.digest, c.id, h.position, h.kind, h.step
        FROM unnest(:digests::bytea[]) WITH ORDINALITY AS d(digest, n)
        JOIN heads AS h ON h.root = :root AND h.digest = d.digest
        JOIN conversations AS c ON c.pk = h.conversation_pk AND c.tenant = :tenant
        ORDER BY d.n, h.conversation_pk DESC, h.kind LIMIT {MAX_HEADS}
    """,
    among=lambda column, name, kind: f"{column} = ANY(:{name}::{kind}[])",
    locked=lambda table: f"FOR UPDATE OF {table} SKIP LOCKED",
    position=lambda column, name: f"strpos({column}, :{name})",
    day=lambda column: f"to_char(to_timestamp({column}) AT TIME ZONE 'UTC', 'YYYY-MM-DD')",
    member=lambda column, member: f"({column}::json ->> '{member}')",
    elements=lambda column, member: (
        f"json_array_elements_text(coalesce({column}::json -> '{member}', '[]')) AS e(value)"
    ),
    has=lambda column, name, member: f"{column} -> '{member}' ? :{name}",
    entry=lambda column, name: f"({column} ->> :{name})",
    keys=lambda column, member: f"jsonb_object_keys({column} -> '{member}') AS k(key)",
)


class PostgresConnection(Connection):
    """`Connection` over one of asyncpg."""

    def __init__(self, connection: asyncpg.Connection) -> None:
        self.raw = connection

    async def fetch(self, statement: str, /, **values: Any) -> Sequence[Row]:
        sql, names = _numbered(statement)
        rows = await self.raw.fetch(sql, *[_stored(name, values[name]) for name in names])
        return await self.computed(_read, rows)

    async def execute_many(self, statement: str, rows: Sequence[Mapping[str, Any]]) -> None:
        sql, names = _numbered(statement)
        stored = [[_stored(name, row[name]) for name in names] for row in rows]
        await self.raw.executemany(sql, stored)

    async def computed(self, compute: Callable[[Sequence[Row]], T], rows: Sequence[Row]) -> T:
        return compute(rows) if len(rows) < _MANY else await asyncio.to_thread(compute, rows)

    async def take_turn(self, table: str) -> None:
        await self.raw.execute(f"LOCK TABLE {table} IN SHARE ROW EXCLUSIVE MODE")

    async def lock(self, names: Sequence[str], kind: int) -> None:
        """Taken in one order everywhere, so that two never wait for each other."""
        await self.raw.execute(_LOCK, list(map(stored_text, names)), kind)


class PostgresEngine(Engine):
    """`Engine` over a Database."""

    database: Database

    def __init__(self, database: Database) -> None:
        self.database = database
        self.dialect = POSTGRES
        self.upkeep = PostgresUpkeep(database)
        self._redact = redaction(database.settings)

    async def read(self, work: Work[T], *, patient: bool = False) -> T:
        limit_s = PATIENT_S if patient else STATEMENT_S
        return await self.database.run(_over(work), limit_s=limit_s)

    async def view(self, work: Work[T]) -> T:
        return await self.database.view(_over(work))

    async def transact(self, work: Work[T], *, patient: bool = False) -> T:
        limit_s = PATIENT_S if patient else STATEMENT_S
        return await self.database.transact(_over(work), limit_s=limit_s)

    async def write(self, statement: str, /, **values: Any) -> Sequence[Row]:
        return await self.fetch(statement, **values)

    async def commit(self, call: CallRecord) -> int:
        if size_of(call) < _SMALL_BYTES:
            return await self.database.commit(self._redact(call))
        return await self.database.commit(await asyncio.to_thread(self._redact, call))

    async def changed(self, kind: str) -> None:
        with suppress(StoreError):
            await self.database.notify(kind)

    def after_reopening(self, work: Work[None]) -> None:
        self.database.after_reopening.append(_over(work))

    def vectors(self) -> VectorIndex:
        return PostgresVectors(self)


def _over(work: Work[T]) -> Callable[[asyncpg.Connection], Awaitable[T]]:
    return lambda raw: work(PostgresConnection(raw))


@lru_cache(maxsize=1024)
def _numbered(statement: str) -> tuple[str, tuple[str, ...]]:
    """A statement with `$n` for its values, and their names in that order."""
    names: dict[str, int] = {}

    def number(match: re.Match[str]) -> str:
        return f"${names.setdefault(match[1], len(names) + 1)}"

    return _NAME.sub(number, statement), tuple(names)


def _stored(name: str, value: Any) -> Any:
    """A value as its column keeps it."""
    if isinstance(value, str):
        return value if name in _JSON else stored_text(value)
    if isinstance(value, list):
        return [_stored(name, each) for each in value]
    return value


def _read(rows: Sequence[asyncpg.Record]) -> list[Row]:
    """Rows as they were before they were stored."""
    if not rows:
        return []
    readers = [_reader(name) for name in rows[0].keys()]  # noqa: SIM118 - a Record gives its values
    return [[r(v) for r, v in zip(readers, row, strict=True)] for row in rows]


def _reader(name: str) -> Callable[[Any], Any]:
    if name in _JSON:
        return lambda value: value
    return read_json if name in _SEARCHED_JSON else read_text
