"""The SQLite engine: statements run on the threads of its Database."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import apsw
import orjson

from gateway.stores.protocols import MAX_HEADS
from gateway.stores.records import CallRecord
from gateway.stores.redact import encodable, redaction
from gateway.stores.sql.engine import (
    Connection,
    Dialect,
    Engine,
    Row,
    Upkeep,
    VectorIndex,
    Work,
    columns,
)
from gateway.stores.sqlite.commits import save_call
from gateway.stores.sqlite.connection import MEMORY_LIMIT_BYTES, one_view
from gateway.stores.sqlite.database import Database
from gateway.stores.sqlite.pattern_index import SQLiteVectors

T = TypeVar("T")


_HEADS_AT_ONCE = 500
_KEY = ("root", "digest", "conversation_pk", "kind")
_ORPHANED_HEADS = f"""
SELECT {columns(_KEY)} FROM heads AS h
WHERE root >= :root AND NOT EXISTS (SELECT 1 FROM conversations AS c WHERE c.pk = h.conversation_pk)
ORDER BY root LIMIT {_HEADS_AT_ONCE}
"""
_REMOVE_HEADS = f"DELETE FROM heads WHERE {' AND '.join([f'{name} = :{name}' for name in _KEY])}"
_LOWEST_ROOT = -(2**63)

SQLITE = Dialect(
    bytewise="",
    # CROSS JOIN keeps the order of the digests, longest history first, so that LIMIT keeps those.
    find_heads=f"""
        SELECT h.digest, c.id, h.position, h.kind, h.step
        FROM carray(:digests) AS d
        CROSS JOIN heads AS h ON h.root = :root AND h.digest = d.value
        CROSS JOIN conversations AS c ON c.pk = h.conversation_pk AND c.tenant = :tenant
        LIMIT {MAX_HEADS}
    """,
    among=lambda column, name, _: f"{column} IN (SELECT value FROM json_each(:{name}))",
    locked=lambda _: "",  # there is one writer
    position=lambda column, name: f"instr({column}, :{name})",
    day=lambda column: f"strftime('%Y-%m-%d', {column}, 'unixepoch')",
    member=lambda column, member: f"({column} ->> '{member}')",
    elements=lambda column, member: f"json_each({column}, '$.{member}')",
    has=lambda column, name, member: (
        f"EXISTS (SELECT 1 FROM json_each({column}, '$.{member}') WHERE key = :{name})"
    ),
    entry=lambda column, name: f"(SELECT value FROM json_each({column}) WHERE key = :{name})",
    keys=lambda column, member: f"json_each({column}, '$.{member}') AS k",
)


class SQLiteConnection(Connection):
    """`Connection` in a thread of the Database: nothing that is awaited waits."""

    def __init__(self, connection: apsw.Connection) -> None:
        self.raw = connection

    async def fetch(self, statement: str, /, **values: Any) -> Sequence[Row]:
        return _rows(statement, values, self.raw)

    async def execute_many(self, statement: str, rows: Sequence[Mapping[str, Any]]) -> None:
        self.raw.executemany(statement, rows)

    async def take_turn(self, table: str) -> None:
        """Whoever writes is alone."""

    async def lock(self, names: Sequence[str], kind: int) -> None:
        """Whoever writes is alone."""


class SQLiteEngine(Engine):
    """`Engine` over a Database."""

    database: Database

    def __init__(self, database: Database) -> None:
        self.database = database
        self.dialect = SQLITE
        self.upkeep = SQLiteUpkeep(self)
        self._redact = redaction(database.settings)

    async def read(self, work: Work[T], *, patient: bool = False) -> T:
        return await self.database.read(partial(_driven, work))

    async def view(self, work: Work[T]) -> T:
        return await self.database.read(one_view(partial(_driven, work)))

    async def transact(self, work: Work[T], *, patient: bool = False) -> T:
        return await self.database.write(partial(_driven, work))

    async def fetch(self, statement: str, /, **values: Any) -> Sequence[Row]:
        """Without a coroutine to drive: every request reads like this."""
        return await self.database.read(partial(_rows, statement, values))

    async def write(self, statement: str, /, **values: Any) -> Sequence[Row]:
        return await self.database.write(partial(_rows, statement, values))

    async def commit(self, call: CallRecord) -> int:
        """The texts are masked in the thread that writes."""
        try:
            return await self.database.write(lambda c: save_call(self._redact(call), c))
        except (UnicodeEncodeError, OverflowError, orjson.JSONEncodeError):
            plain = encodable(call)
            return await self.database.write(lambda c: save_call(self._redact(plain), c))

    async def changed(self, kind: str) -> None:
        """Gateways on one file look for themselves."""

    def after_reopening(self, work: Work[None]) -> None:
        self.database.after_reopening.append(partial(_driven, work))

    def vectors(self) -> VectorIndex:
        return SQLiteVectors(self.database)


class SQLiteUpkeep(Upkeep):
    """`Upkeep` over an engine."""

    runs_at_once = conversations_at_once = 20
    used = """
        SELECT (page_count - freelist_count) * page_size
        FROM pragma_page_count, pragma_freelist_count, pragma_page_size
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        if engine.database.settings.in_memory:  # the rest is for what arrives before the next round
            self.room = MEMORY_LIMIT_BYTES * 3 // 4

    async def remove_heads(self, removed: int) -> None:
        """Look for them, unless there cannot be any."""
        root = _LOWEST_ROOT
        while removed and (found := await self._engine.fetch(_ORPHANED_HEADS, root=root)):
            keys = [dict(zip(_KEY, row, strict=True)) for row in found]
            await self._engine.transact(lambda c, keys=keys: c.execute_many(_REMOVE_HEADS, keys))  # type: ignore[misc]
            root = keys[-1]["root"]


def _rows(statement: str, values: dict[str, Any], connection: apsw.Connection) -> Sequence[Row]:
    for name, value in values.items():
        if isinstance(value, list):
            is_bytes = value and isinstance(value[0], bytes)
            values[name] = apsw.carray(tuple(value)) if is_bytes else json.dumps(value)
    return connection.execute(statement, values).fetchall()


def _driven(work: Work[T], connection: apsw.Connection) -> T:
    """The result of a coroutine that never waits, without an event loop."""
    coroutine = work(SQLiteConnection(connection))
    try:
        coroutine.send(None)
    except StopIteration as ended:
        return ended.value  # type: ignore[no-any-return]
    coroutine.close()
    raise RuntimeError("work on a connection awaited something else")
