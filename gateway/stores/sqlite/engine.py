"""The SQLite engine: statements run on the threads of its Database."""

import asyncio
import json
import os
from collections.abc import Sequence
from contextlib import closing
from functools import partial
from operator import attrgetter
from typing import Any

import apsw
import orjson

from gateway.stores.codec import (
    CONVERSATION_COLUMNS,
    DECISION_COLUMNS,
    INJECTION_COLUMNS,
    SCORE_COLUMNS,
    STEP_COLUMNS,
    SUM_COLUMNS,
    UPDATE_COLUMNS,
    call_json,
    content_json,
    decision_row,
    injection_row,
    score_row,
    step_row,
    tags_json,
    totals_of,
    totals_row,
    update_row,
)
from gateway.stores.commit_plan import (
    StoredStep,
    new_injections,
    plan_steps,
    settled_outcome,
    usage_rows,
)
from gateway.stores.protocols import MAX_HEADS, StoreError, VersionConflict
from gateway.stores.records import CallRecord, ConversationRecord, RunUpdate, StepRow
from gateway.stores.redact import encodable, redaction
from gateway.stores.sql.engine import (
    STEPS_AT_ONCE,
    Connection,
    Engine,
    Row,
    SqlForms,
    Upkeep,
    Work,
    columns,
    excluded,
)
from gateway.stores.sql.states import root_key, stored_step
from gateway.stores.sql.usage import ADDED
from gateway.stores.sqlite.connection import MEMORY_LIMIT_BYTES, one_view
from gateway.stores.sqlite.database import Database
from gateway.stores.totals import RunTotals
from gateway.stores.usage import AMOUNTS, SUMS
from gateway.tasks import off_loop
from gateway.values import FieldDict, Fields, T, by_name

_HEADS_AT_ONCE = 500
_KEY = ("root", "digest", "conversation_pk", "kind")
_ORPHANED_HEADS = f"""
SELECT {columns(_KEY)} FROM heads AS h
WHERE root >= :root AND NOT EXISTS (SELECT 1 FROM conversations AS c WHERE c.pk = h.conversation_pk)
ORDER BY root LIMIT {_HEADS_AT_ONCE}
"""
_REMOVE_HEADS = f"DELETE FROM heads WHERE {' AND '.join([f'{name} = :{name}' for name in _KEY])}"
_LOWEST_ROOT = -(2**63)
_SCRUB_MS = 60_000  # longest wait for others that write to the file

SQLITE = SqlForms(
    bytewise="",
    plain="",
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
    # A look for its name leaves out most texts without the key.
    has=lambda column, name, member: (
        f"(instr({column}, json_quote(:{name})) AND"
        f" EXISTS (SELECT 1 FROM json_each({column}, '$.{member}') WHERE key = :{name}))"
    ),
    entry=lambda column, name: f"(SELECT value FROM json_each({column}) WHERE key = :{name})",
    keys=lambda column, member: f"json_each({column}, '$.{member}') AS k",
    phrase=lambda words, begins: f'"{" ".join(words)}"{"*" if begins else ""}',
    found=lambda name: (
        f"r.pk IN (SELECT w.rowid >> 20 FROM run_words AS w WHERE w.words MATCH :{name}"
        f" AND w.rowid >= :first << 20 UNION SELECT w.rowid >> 20 FROM result_words AS w"
        f" WHERE w.words MATCH :{name} AND w.rowid >= :first << 20)"
    ),
    vector=":vector",
    distance="coalesce(vec_distance_cosine(vector, :vector), 9.0)",
    dimensions="length(vector) / 4.0",
    floats="vector",
)


class SQLiteConnection(Connection):
    """`Connection` in a thread of the Database: nothing that is awaited waits."""

    def __init__(self, connection: apsw.Connection):
        self.raw = connection

    async def fetch(self, statement: str, /, **values: Any) -> Sequence[Row]:
        return _rows(statement, values, self.raw)

    async def execute_many(self, statement: str, rows: Sequence[Fields]) -> None:
        self.raw.executemany(statement, rows)

    async def take_turn(self, table: str) -> None:
        """Whoever writes is alone."""

    async def lock(self, names: Sequence[str], kind: int) -> None:
        """Whoever writes is alone."""


# Masking takes 14 to 30 ms for each MB of a text with words that come before secrets.
_MASKED_APART_BYTES = 2**16


class SQLiteEngine(Engine):
    """`Engine` over a Database."""

    database: Database  # with its writer and readers

    def __init__(self, database: Database):
        self.database = database
        self.forms = SQLITE
        self.upkeep = SQLiteUpkeep(self)
        # A search only uses CPU. One per core would leave none for the event loop, one per reader
        # thread none for other queries.
        spare = min(database.reader_threads, os.cpu_count() or 1) - 1
        self.searching = asyncio.Semaphore(max(1, spare))
        self._redact = redaction(database.settings)
        self._large = asyncio.Lock()

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
        """The texts are masked in the thread that writes, those of a large record in another one,
        or what waits to be written would wait for them, too. It waits for one large record at most:
        writing 8 MB takes 0.1 s of processor time, mostly for the words that are searched."""
        try:
            return await self._commit(call)
        except (UnicodeEncodeError, OverflowError, orjson.JSONEncodeError):
            return await self._commit(encodable(call))

    async def _commit(self, call: CallRecord) -> int:
        version = await self.database.write(partial(self._save_small, call))
        if version is None:
            async with self._large:
                masked = await off_loop(self._redact, call)
                version = await self.database.write(partial(save_call, masked))
        return version

    def _save_small(self, call: CallRecord, connection: apsw.Connection) -> int | None:
        """The version after the commit; None, and nothing is written, if the record is large."""
        if call.memory_bytes > _MASKED_APART_BYTES:
            return None
        return save_call(self._redact(call), connection)

    async def changed(self, kind: str) -> None:
        """Gateways on one file look for themselves."""

    def after_reopening(self, work: Work[None]) -> None:
        self.database.after_reopening.append(partial(_driven, work))


_DUE = f"""
SELECT run_pk, step_index FROM steps_to_search
ORDER BY run_pk DESC, step_index DESC LIMIT {STEPS_AT_ONCE}
"""


class SQLiteUpkeep(Upkeep):
    """`Upkeep` over an engine."""

    runs_at_once = conversations_at_once = 20
    used = """
        SELECT (page_count - freelist_count) * page_size
        FROM pragma_page_count, pragma_freelist_count, pragma_page_size
    """

    index_results = f"""
        INSERT OR REPLACE INTO result_words (rowid, words)
        SELECT (s.run_pk << 20) + min(s.step_index, 1048574), coalesce((
            SELECT substr(group_concat(CASE WHEN length(o) > 8000
                THEN substr(o, 1, 4000) || ' ' || substr(o, -4000) ELSE o END, ' '), 1, 32000)
            FROM (
                SELECT value ->> 'observation' AS o
                FROM json_each(replace(s.content, '\\u0000', '\\u0020'), '$.actions')
            )
        ), '')
        FROM ({_DUE}) AS d CROSS JOIN steps AS s USING (run_pk, step_index)
        WHERE json_valid(s.content);
        DELETE FROM steps_to_search WHERE (run_pk, step_index) IN ({_DUE});
        SELECT changes();
    """

    def __init__(self, engine: Engine):
        self._engine = engine
        if engine.database.settings.in_memory:  # the rest is for what arrives before the next round
            self.room = MEMORY_LIMIT_BYTES * 3 // 4

    async def scrub(self) -> None:
        """Write the file again without what was removed, and empty its log."""
        settings = self._engine.database.settings
        if settings.in_memory:
            return

        async def work(_: Connection) -> None:
            with closing(apsw.Connection(settings.path)) as connection:
                connection.set_busy_timeout(_SCRUB_MS)
                for words in ("run_words", "result_words"):
                    connection.execute(f"INSERT INTO {words} ({words}) VALUES ('optimize')")
                connection.execute("VACUUM")
                connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)

        await self._engine.read(work)

    async def remove_heads(self, removed: int) -> None:
        """Look for them, unless there cannot be any."""
        root = _LOWEST_ROOT
        while removed and (found := await self._engine.fetch(_ORPHANED_HEADS, root=root)):
            keys = [by_name(_KEY, row) for row in found]
            await self._engine.transact(lambda c, keys=keys: c.execute_many(_REMOVE_HEADS, keys))  # type: ignore[misc]
            root = keys[-1]["root"]


def _rows(statement: str, values: FieldDict, connection: apsw.Connection) -> Sequence[Row]:
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


def _insert(table: str, *names: str) -> str:
    return f"INSERT INTO {table} ({columns(names)}) VALUES ({', '.join('?' * len(names))})"


def _assigned(names: Sequence[str]) -> str:
    return ", ".join([f"{name} = ?" for name in names])


_TOTALS = (*SUM_COLUMNS, "counts")
_CHANGING = ("updated_at", "served_head", "message_count", "signature", "has_tools", "state")
_INSERT_CONVERSATION = f"""
{_insert("conversations", *CONVERSATION_COLUMNS)} ON CONFLICT (id) DO NOTHING RETURNING pk
"""
_UPDATE_CONVERSATION = f"""
UPDATE conversations SET version = version + 1, {_assigned(_CHANGING)}
WHERE id = ? AND version = ? AND tenant = ? RETURNING pk
"""
_INSERT_HEAD = f"""
{_insert("heads", "root", "digest", "conversation_pk", "kind", "position", "step")}
ON CONFLICT DO NOTHING
"""
_INSERT_ITEM = f"""
{_insert("items", "tenant", "id", "conversation_pk", "content")}
ON CONFLICT DO UPDATE SET {excluded(("conversation_pk", "content"))}
"""
_FIND_RUN = f"""
SELECT pk, outcome, outcome_source, tags, {columns(_TOTALS)} FROM runs WHERE id = ? AND tenant = ?
"""
_INSERT_RUN = _insert("runs", "id", "conversation_pk", "tenant", *UPDATE_COLUMNS, *_TOTALS)
_UPDATE_RUN = f"""
UPDATE runs
SET updated_at = ?, ended_at = coalesce(?, ended_at), state = ?, outcome = ?, outcome_source = ?,
    mode = ?, policy_digest = ?, model_requested = ?,
    task_preview = CASE task_preview WHEN '' THEN ? ELSE task_preview END, {_assigned(_TOTALS)}
WHERE pk = ?
"""
_UPDATE_SUMS = f"UPDATE runs SET {_assigned(_TOTALS)} WHERE pk = ?"
_INSERT_STEP = _insert("steps", "run_pk", *STEP_COLUMNS)
_FIND_STEP = """
SELECT call, composite IS NOT NULL, state, content FROM steps WHERE run_pk = ? AND step_index = ?
"""
_UPDATE_CALL = """
UPDATE steps SET call = ?, content = coalesce(?, content) WHERE run_pk = ? AND step_index = ?
"""
_UPDATE_SCORES = f"""
UPDATE steps SET {_assigned(SCORE_COLUMNS)}, content = ? WHERE run_pk = ? AND step_index = ?
"""
_INSERT_INJECTION = _insert("injections", "run_pk", *INJECTION_COLUMNS)
_FIND_INJECTIONS = """
SELECT step_index, ordinal FROM injections WHERE run_pk = ? AND step_index >= ?
"""
_INSERT_DECISION = f"""
{_insert("pattern_decisions", *DECISION_COLUMNS, "tenant", "at")} ON CONFLICT DO NOTHING
"""
_ADD_USAGE = f"""
{_insert("usage_by_hour", "tenant", "tags", "hour", "agent", "model", *ADDED)}
ON CONFLICT (hour, tenant, agent, model, tags) DO UPDATE SET
    {", ".join(f"{n} = usage_by_hour.{n} + excluded.{n}" for n in (*SUMS, *AMOUNTS))},
    cost_usd = CASE WHEN excluded.cost_usd IS NULL THEN usage_by_hour.cost_usd
        ELSE coalesce(usage_by_hour.cost_usd, 0.0) + excluded.cost_usd END
"""
_conversation = attrgetter(*CONVERSATION_COLUMNS)
_changing = attrgetter(*_CHANGING, "id", "version", "tenant")


def save_call(call: CallRecord, connection: apsw.Connection) -> int:
    """Write all of `call` and return the conversation's new version. Raises: VersionConflict."""
    conversation = call.conversation
    tenant = conversation.tenant
    conversation_pk = _save_conversation(conversation, connection)
    if call.heads:
        rows = [
            (root_key(h.root), h.digest, conversation_pk, h.kind, h.position, h.step)
            for h in call.heads
        ]
        connection.executemany(_INSERT_HEAD, rows)
    for item in call.items:
        connection.execute(_INSERT_ITEM, (tenant, item.id, conversation_pk, item.content))
    for run in call.runs:
        _save_run(call, run, conversation_pk, connection=connection)
    for decision in call.decisions:
        made = (*decision_row(decision), tenant, conversation.updated_at)
        connection.execute(_INSERT_DECISION, made)
    return conversation.version + 1


def _save_conversation(record: ConversationRecord, connection: apsw.Connection) -> int:
    if record.version:
        saved = connection.execute(_UPDATE_CONVERSATION, _changing(record))
    else:
        first = by_name(CONVERSATION_COLUMNS, _conversation(record))
        saved = connection.execute(_INSERT_CONVERSATION, tuple((first | {"version": 1}).values()))
    rows: list[Any] = saved.fetchall()
    if rows:
        return rows[0][0]  # type: ignore[no-any-return]
    find = "SELECT version, tenant FROM conversations WHERE id = ?"
    version = 0
    if stored := connection.execute(find, (record.id,)).get:
        version, tenant = stored
        if tenant != record.tenant:
            raise StoreError(f"conversation {record.id!r} is another tenant's")
    raise VersionConflict(record.id, expected=record.version, actual=version)


def _save_run(
    call: CallRecord, run: RunUpdate, conversation_pk: int, connection: apsw.Connection
) -> None:
    tenant = call.conversation.tenant
    execute = connection.execute
    steps = [step for step in call.steps if step.run_id == run.id]
    injected = [row for row in call.injections if row.run_id == run.id]
    found: list[Any] = execute(_FIND_RUN, (run.id, tenant)).fetchall()
    if found:
        pk, outcome, source, tags, *sums = found[0]
        totals = totals_of(sums)
        stored = _stored_steps(pk, steps, totals.steps, connection=connection)
        if injected:
            first = min(row.step_index for row in injected)
            injected = new_injections(injected, execute(_FIND_INJECTIONS, (pk, first)))
    elif not run.updated_at:
        return
    else:
        totals = RunTotals()
        stored = {}
        injected = new_injections(injected, ())
    sources = [row.source for row in injected if row.applied]
    plan = plan_steps(steps, stored)
    totals = plan.totals(totals, sources)
    if not run.updated_at:
        execute(_UPDATE_SUMS, (*totals_row(totals), pk))
    elif found:
        if run.tags:
            tags = _add_tags(pk, run, tags, connection=connection)
        latest = (run.updated_at, run.ended_at, run.state)
        policy = (run.mode, run.policy_digest, run.model_requested, run.task_preview)
        outcome = settled_outcome((outcome, source), run)
        execute(_UPDATE_RUN, (*latest, *outcome, *policy, *totals_row(totals), pk))
    else:
        tags = tags_json(run.tags)
        about = (run.id, conversation_pk, tenant, *update_row(run))
        execute(_INSERT_RUN, (*about, *totals_row(totals)))
        pk = connection.last_insert_rowid()
    connection.executemany(_INSERT_STEP, [(pk, *step_row(step)) for step in plan.fresh])
    for late in plan.late:
        scores = (*score_row(late.step), content_json(late.content))
        execute(_UPDATE_SCORES, (*scores, pk, late.step.step_index))
    for index, (made, content) in plan.calls.items():
        execute(_UPDATE_CALL, (call_json(made), content_json(content), pk, index))
    for row in injected:
        execute(_INSERT_INJECTION, (pk, *injection_row(row)))
    for summed in usage_rows(run, plan.scored, plan.called):
        execute(_ADD_USAGE, (tenant, tags, *summed))


def _add_tags(pk: int, run: RunUpdate, stored: str, connection: apsw.Connection) -> str:
    """Add tags of new names to a run, and return all of its tags. A name that the run has keeps
    its value."""
    known = orjson.loads(stored)
    if not run.tags.keys() - known.keys():
        return stored
    tags = tags_json({**run.tags, **known})
    connection.execute("UPDATE runs SET tags = ? WHERE pk = ?", (tags, pk))
    return tags


def _stored_steps(
    pk: int, steps: Sequence[StepRow], newest: int, connection: apsw.Connection
) -> dict[int, StoredStep]:
    """The steps of a run that are stored. Steps above `newest`, the highest index stored, such
    as those of a history seen for the first time, need no look-up."""
    stored = {}
    for index in {step.step_index for step in steps if step.step_index <= newest}:
        row: Any = connection.execute(_FIND_STEP, (pk, index)).get
        if row is not None:
            stored[index] = stored_step(*row)
    return stored
