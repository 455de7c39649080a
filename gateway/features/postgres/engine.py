"""The PostgreSQL engine: numbers the values of a statement, and treats what its texts lack. Its
conversations and retention."""

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any, Generic

import asyncpg

from gateway.features.postgres.connection import STATEMENT_S
from gateway.features.postgres.database import PATIENT_S, Database
from gateway.features.postgres.schema import (
    DAY_BITS,
    add_partitions,
    days_with_partitions,
    drop_partitions,
)
from gateway.features.postgres.statement import read_json, read_text, stored_text
from gateway.stores import codec
from gateway.stores.protocols import MAX_HEADS, StoreError
from gateway.stores.records import CallRecord, ConversationRecord
from gateway.stores.redact import redaction
from gateway.stores.sql.engine import (
    STEPS_AT_ONCE,
    Connection,
    Engine,
    Row,
    SqlForms,
    Upkeep,
    Work,
)
from gateway.stores.sql.states import CONVERSATION, LOAD, STORED, VERSION, SQLStateStore
from gateway.tasks import off_loop, spawn
from gateway.values import Fields, T

_NAME = re.compile(r"(?<!:):([a-z_][a-z_0-9]*)")
# Columns with texts of JSON, which writes a NUL as an escape: stored and read as they are.
_JSON = frozenset(("readings", "call", "content", "fields", "choice"))

_SEARCHED_JSON = frozenset(("tags", "counts"))
# Rows that are read in a thread: a thousand runs take as long as ten requests.
_MANY = 200

# A thread costs more than it saves for a record this small.
_SMALL_BYTES = 16 * 1024
# Larger records are committed one after the other: small ones of a group wait for one of them.
_LARGE_BYTES = 2**20

_LOCK = """
SELECT pg_advisory_xact_lock(key) FROM (
    SELECT DISTINCT hashtextextended(name, $2) AS key FROM unnest($1::text[]) AS name ORDER BY 1
) AS keys
"""

_FOUND = """r.pk IN (
    SELECT w.pk FROM runs AS w WHERE gateway_words(w.task_preview) @@ {query} AND w.pk >= :first
    UNION SELECT s.run_pk FROM steps AS s
    WHERE gateway_step_words(s.content, s.call, s.failure_type) @@ {query} AND s.run_pk >= :first
    UNION SELECT t.run_pk FROM result_words AS t WHERE t.words @@ {query} AND t.run_pk >= :first
)"""

POSTGRES = SqlForms(
    bytewise='COLLATE "C"',
    plain='COLLATE "default"',
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
    keys=lambda column, member: f"jsonb_each({column} -> '{member}') AS k",
    phrase=lambda words, begins: " <-> ".join(words) + (":*" if begins else ""),
    found=lambda name: _FOUND.format(query=f"to_tsquery('simple', :{name})"),
    vector=":vector::float4[]::vector",
    # With `+ 0` no index on the vectors fits, whatever the planner estimates. The value is read
    # from its array once, not for each row.
    distance="(vector <=> (SELECT :vector::float4[]::vector)) + 0",
    dimensions="vector_dims(vector)",
    floats="vector::float4[]",
)


class PostgresConnection(Connection):
    """`Connection` over one of asyncpg."""

    def __init__(self, connection: asyncpg.Connection):
        self.raw = connection

    async def fetch(self, statement: str, /, **values: Any) -> Sequence[Row]:
        sql, names = _numbered(statement)
        rows = await self.raw.fetch(sql, *[_stored(name, values[name]) for name in names])
        return await self.computed(_read, rows)

    async def execute_many(self, statement: str, rows: Sequence[Fields]) -> None:
        sql, names = _numbered(statement)
        stored = [[_stored(name, row[name]) for name in names] for row in rows]
        await self.raw.executemany(sql, stored)

    async def computed(self, compute: Callable[[Sequence[Row]], T], rows: Sequence[Row]) -> T:
        if len(rows) < _MANY:
            return compute(rows)
        return await off_loop(compute, rows)

    async def take_turn(self, table: str) -> None:
        await self.raw.execute(f"LOCK TABLE {table} IN SHARE ROW EXCLUSIVE MODE")

    async def lock(self, names: Sequence[str], kind: int) -> None:
        """Taken in one order everywhere, so that two never wait for each other."""
        await self.raw.execute(_LOCK, list(map(stored_text, names)), kind)


_LIMITS_S = {False: STATEMENT_S, True: PATIENT_S}  # by whether the work may take its time


class PostgresEngine(Engine):
    """`Engine` over a Database."""

    database: Database  # with its pool of connections

    def __init__(self, database: Database):
        self.database = database
        self.forms = POSTGRES
        self.upkeep = PostgresUpkeep(database)
        self._redact = redaction(database.settings)
        self._large = asyncio.Lock()

    async def read(self, work: Work[T], *, patient: bool = False) -> T:
        return await self.database.run(_over(work), limit_s=_LIMITS_S[patient])

    async def view(self, work: Work[T]) -> T:
        return await self.database.view(_over(work))

    async def transact(self, work: Work[T], *, patient: bool = False) -> T:
        return await self.database.transact(_over(work), limit_s=_LIMITS_S[patient])

    async def write(self, statement: str, /, **values: Any) -> Sequence[Row]:
        return await self.fetch(statement, **values)

    async def commit(self, call: CallRecord) -> int:
        size = call.memory_bytes
        if size < _SMALL_BYTES:
            return await self.database.commit(self._redact(call))
        if size < _LARGE_BYTES:
            return await self.database.commit(await off_loop(self._redact, call))
        async with self._large:
            return await self.database.commit(await off_loop(self._redact, call))

    async def changed(self, kind: str) -> None:
        with suppress(StoreError):
            await self.database.notify(kind)

    def after_reopening(self, work: Work[None]) -> None:
        self.database.after_reopening.append(_over(work))


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
        if name in _JSON:
            return value
        return stored_text(value)
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
    if name in _SEARCHED_JSON:
        return read_json
    return read_text


_MAX_GROUP = 256
_VERSIONS = "SELECT id, tenant, version FROM conversations WHERE id = ANY(:ids::text[])"
_LOAD_ALL = f"""
SELECT {CONVERSATION} FROM conversations WHERE id = ANY(:ids::text[]) AND {STORED}
"""

Key = tuple[str, str]  # id and tenant of a conversation


class PostgresStateStore(SQLStateStore):
    """`StateStore` whose reads of single conversations, which every call makes, go together."""

    def __init__(self, engine: Engine):
        super().__init__(engine)
        self._versions = ReadTogether(self._read_versions, "read versions")
        self._loads = ReadTogether(self._read_conversations, "load conversations")

    async def load(self, tenant: str, conversation_id: str) -> ConversationRecord | None:
        return await self._loads.get(tenant, conversation_id)

    async def version(self, tenant: str, conversation_id: str) -> int:
        return await self._versions.get(tenant, conversation_id) or 0

    async def _read_versions(self, keys: Sequence[Key]) -> dict[Key, int]:
        if len(keys) > 1:
            return {(row[0], row[1]): row[2] for row in await self._read(_VERSIONS, keys)}
        rows = await self._read(VERSION, keys)
        if rows:
            return {keys[0]: rows[0][0]}
        return {}

    async def _read_conversations(self, keys: Sequence[Key]) -> dict[Key, ConversationRecord]:
        rows = await self._read(LOAD if len(keys) == 1 else _LOAD_ALL, keys)
        return {(found.id, found.tenant): found for found in map(codec.conversation_of, rows)}

    async def _read(self, statement: str, keys: Sequence[Key]) -> Sequence[Row]:
        """The rows of one conversation or, with another statement, of several."""
        if len(keys) == 1:  # the driver takes a name for less than a list of names
            ((name, tenant),) = keys
            return await self._engine.fetch(statement, id=name, tenant=tenant)
        return await self._engine.fetch(statement, ids=list({name for name, _ in keys}))


class ReadTogether(Generic[T]):
    """Reads a value of each conversation. What is asked for while a statement is under way is the
    next statement. `read`: the values of these conversations, as far as they are stored; `name`: of
    its task."""

    def __init__(self, read: Callable[[Sequence[Key]], Awaitable[Mapping[Key, T]]], name: str):
        self._read = read
        self._name = name
        self._waiting: list[tuple[Key, asyncio.Future[T | None]]] = []
        self._task: asyncio.Task[None] | None = None

    async def get(self, tenant: str, conversation_id: str) -> T | None:
        """The value of one conversation; None when it is not stored."""
        future: asyncio.Future[T | None] = asyncio.get_running_loop().create_future()
        self._waiting.append(((conversation_id, tenant), future))
        if self._task is None:
            self._task = spawn(self._run(), name=self._name)
        return await future

    async def _run(self) -> None:
        try:
            while self._waiting:
                group = self._waiting[:_MAX_GROUP]
                self._waiting = self._waiting[_MAX_GROUP:]
                group = [each for each in group if not each[1].done()]
                try:
                    found = await self._read([key for key, _ in group])
                except Exception as error:
                    for _, future in group:
                        if not future.done():
                            future.set_exception(error)
                    continue
                for key, future in group:
                    if not future.done():
                        future.set_result(found.get(key))
        finally:
            self._task = None


# Whole days go first: when every run of a day is old, its steps and guidance are dropped with
# their partitions, whatever their number. Sizes are those of what is stored, before compression
# and indexes.
_FIXED_BYTES = 1000  # of a conversation or run besides its texts: columns and hashes

# For half an interval after the last round of a gateway, no other one does it.
_LEASE = """
INSERT INTO leases AS l (name, holder, until)
VALUES ('retention', $1, now() + make_interval(secs => $2))
ON CONFLICT (name) DO UPDATE SET holder = excluded.holder, until = excluded.until
WHERE l.holder = excluded.holder OR l.until < now()
RETURNING TRUE
"""
_DAY_IN_USE = """
SELECT EXISTS (
    SELECT 1 FROM runs WHERE pk >= $1 AND pk < $2
    AND (started_at >= $3 OR updated_at >= $3 OR conversation_pk = ANY($4::int8[]))
)
"""
_RUNS_OF_DAY = "DELETE FROM runs WHERE pk >= $1 AND pk < $2"
_RAW_OF_DAY = "DELETE FROM raw_calls WHERE run_pk >= $1 AND run_pk < $2"
# As by a commit: in the order of the ids. What a commit holds at the moment is in use.
_LOCK_CONVERSATIONS = f"""
WITH locked AS (
    SELECT pk, octet_length(state) + {_FIXED_BYTES} AS bytes FROM conversations
    WHERE pk = ANY(:pks::int8[]) ORDER BY id FOR UPDATE SKIP LOCKED
)
SELECT pk, (bytes + (
    SELECT coalesce(sum(r.bytes + {_FIXED_BYTES}), 0) FROM runs AS r WHERE r.conversation_pk = l.pk
))::bigint FROM locked AS l
"""
_LEFT = "SELECT conversation_pk FROM removed LIMIT 200"


class PostgresUpkeep(Upkeep):
    """`Upkeep` of a Database."""

    runs_at_once = 500
    conversations_at_once = 200
    used = f"""
        SELECT ((SELECT coalesce(sum(bytes + {_FIXED_BYTES}), 0) FROM runs) + (
            SELECT coalesce(sum(octet_length(state) + {_FIXED_BYTES}), 0) FROM conversations
        ))::bigint
    """

    # Each step by its key, whatever the planner estimates: a join read all of a table that has just
    # been filled.
    index_results = f"""
        WITH due AS (
            DELETE FROM steps_to_search WHERE ctid = ANY (ARRAY(
                SELECT ctid FROM steps_to_search
                ORDER BY run_pk DESC, step_index DESC LIMIT {STEPS_AT_ONCE} FOR UPDATE
            )) RETURNING run_pk, step_index
        ), indexed AS (
            INSERT INTO result_words (run_pk, step_index, words)
            SELECT run_pk, step_index, gateway_result_words((
                SELECT s.content FROM steps AS s
                WHERE s.run_pk = due.run_pk AND s.step_index = due.step_index
            )) FROM due
            ON CONFLICT (run_pk, step_index) DO UPDATE SET words = excluded.words
        )
        SELECT count(*) FROM due
    """

    def __init__(self, database: Database):
        self._database = database

    async def begin(self) -> bool:
        """Whether this gateway does the rounds; the partitions of the next days are made."""
        held_s = self._database.settings.retention_interval_s / 2
        if not await self._database.fetch(_LEASE, self._database.holder, held_s):
            return False
        await self._database.run(add_partitions)
        return True

    async def remove_days(self, older_than: float, kept: list[int]) -> int:
        """The number of runs whose steps went with the partitions of whole old days."""

        async def drop(connection: asyncpg.Connection) -> int:
            runs = 0
            for day in await days_with_partitions(connection):
                span = (day << DAY_BITS, (day + 1) << DAY_BITS)
                if (day + 1) * 86_400 > older_than:
                    break
                if await connection.fetchval(_DAY_IN_USE, *span, older_than, kept):
                    continue
                if await drop_partitions(connection, day):
                    await connection.execute(_RAW_OF_DAY, *span)
                    status = await connection.execute(_RUNS_OF_DAY, *span)
                    runs += int(status.rpartition(" ")[2])
            return runs

        return await self._database.run(drop, limit_s=PATIENT_S)

    async def choose(
        self, pks: list[int], surplus: float, connection: Connection
    ) -> tuple[list[int], int | None]:
        """Lock and choose the conversations that are not in use, in their order."""
        sizes = dict(map(tuple, await connection.fetch(_LOCK_CONVERSATIONS, pks=pks)))
        chosen = []
        freed = 0
        for pk in pks:
            if pk in sizes and freed < surplus:
                chosen.append(pk)
                freed += sizes[pk]
        await connection.fetch("INSERT INTO removed SELECT unnest(:pks::int8[])", pks=chosen)
        return chosen, freed

    async def remove_heads(self, removed: int) -> None:
        """Remove the heads of conversations, those of an interrupted round as well."""

        async def work(connection: asyncpg.Connection) -> int:
            pks = [pk for (pk,) in await connection.fetch(_LEFT)]
            for table in ("heads", "removed"):
                sql = f"DELETE FROM {table} WHERE conversation_pk = ANY($1::int8[])"
                await connection.execute(sql, pks)
            return len(pks)

        while await self._database.transact(work, limit_s=PATIENT_S):
            pass
