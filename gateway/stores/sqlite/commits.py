"""Writes the record of one call to the tables, inside the transaction of a write."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import apsw
import orjson

from gateway.stores import codec
from gateway.stores.commit_plan import StepPlan, StoredStep, plan_steps, settled_outcome
from gateway.stores.protocols import StoreError, VersionConflict
from gateway.stores.records import CallRecord, ConversationRecord, InjectionRow, RunUpdate, StepRow
from gateway.stores.sql.engine import Row
from gateway.stores.sql.states import root_key
from gateway.stores.sql.usage import ADDED, usage_rows
from gateway.stores.totals import RunTotals
from gateway.stores.usage import AMOUNTS, SUMS


def _marks(count: int) -> str:
    return ", ".join("?" * count)


_COLUMNS = ", ".join(codec.CONVERSATION_COLUMNS)
_TOTALS = ", ".join((*codec.SUM_COLUMNS, "counts"))

_INSERT_CONVERSATION = f"""
INSERT INTO conversations ({_COLUMNS}) VALUES ({_marks(len(codec.CONVERSATION_COLUMNS))})
ON CONFLICT (id) DO NOTHING RETURNING pk
"""
_UPDATE_CONVERSATION = """
UPDATE conversations
SET version = version + 1, updated_at = ?, served_head = ?, message_count = ?, signature = ?,
    has_tools = ?, state = ?
WHERE id = ? AND version = ? AND tenant = ? RETURNING pk
"""
_INSERT_HEAD = """
INSERT INTO heads (root, digest, conversation_pk, kind, position, step)
VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING
"""
_INSERT_ITEM = """
INSERT INTO items (tenant, id, conversation_pk, content) VALUES (?, ?, ?, ?)
ON CONFLICT DO UPDATE SET conversation_pk = excluded.conversation_pk, content = excluded.content
"""
_FIND_RUN = f"""
SELECT pk, outcome, outcome_source, tags, {_TOTALS} FROM runs WHERE id = ? AND tenant = ?
"""
_INSERT_RUN = f"""
INSERT INTO runs (id, conversation_pk, tenant, {", ".join(codec.UPDATE_COLUMNS)}, {_TOTALS})
VALUES ({_marks(4 + len(codec.UPDATE_COLUMNS) + len(codec.SUM_COLUMNS))})
"""
_UPDATE_RUN = f"""
UPDATE runs
SET updated_at = ?, ended_at = coalesce(?, ended_at), state = ?, outcome = ?, outcome_source = ?,
    mode = ?, policy_digest = ?, model_requested = ?,
    {", ".join(f"{name} = ?" for name in codec.SUM_COLUMNS)}, counts = ?
WHERE pk = ?
"""
_INSERT_STEP = f"""
INSERT INTO steps (run_pk, {", ".join(codec.STEP_COLUMNS)})
VALUES ({", ".join("?" * (1 + len(codec.STEP_COLUMNS)))})
"""
_FIND_STEP = """
SELECT call, composite IS NOT NULL, state, content FROM steps WHERE run_pk = ? AND step_index = ?
"""
_UPDATE_CALL = """
UPDATE steps SET call = ?, content = coalesce(?, content) WHERE run_pk = ? AND step_index = ?
"""
_UPDATE_SCORES = f"""
UPDATE steps SET {", ".join(f"{name} = ?" for name in codec.SCORE_COLUMNS)}, content = ?
WHERE run_pk = ? AND step_index = ?
"""
_INSERT_INJECTION = f"""
INSERT INTO injections (run_pk, {", ".join(codec.INJECTION_COLUMNS)})
VALUES ({_marks(1 + len(codec.INJECTION_COLUMNS))}) ON CONFLICT DO NOTHING
"""
_INSERT_DECISION = f"""
INSERT INTO pattern_decisions ({", ".join(codec.DECISION_COLUMNS)}, tenant, at)
VALUES ({_marks(2 + len(codec.DECISION_COLUMNS))}) ON CONFLICT DO NOTHING
"""
_ADD_USAGE = f"""
INSERT INTO usage_by_hour (tenant, tags, hour, agent, model, {", ".join(ADDED)})
VALUES ({_marks(5 + len(ADDED))})
ON CONFLICT (hour, tenant, agent, model, tags) DO UPDATE SET
    {", ".join(f"{n} = usage_by_hour.{n} + excluded.{n}" for n in (*SUMS, *AMOUNTS))},
    cost_usd = CASE WHEN excluded.cost_usd IS NULL THEN usage_by_hour.cost_usd
        ELSE coalesce(usage_by_hour.cost_usd, 0.0) + excluded.cost_usd END
"""


def save_call(call: CallRecord, connection: apsw.Connection) -> int:
    """Write all of `call` and return the conversation's new version. Raises: VersionConflict."""
    conversation = call.conversation
    conversation_pk = _save_conversation(conversation, connection)
    if call.heads:
        rows = (
            (root_key(h.root), h.digest, conversation_pk, h.kind, h.position, h.step)
            for h in call.heads
        )
        connection.executemany(_INSERT_HEAD, rows)
    for item in call.items:
        values = (conversation.tenant, item.id, conversation_pk, item.content)
        connection.execute(_INSERT_ITEM, values)
    for run in call.runs:
        _save_run(call, run, conversation_pk, connection)
    for decision in call.decisions:
        made = (conversation.tenant, conversation.updated_at)
        connection.execute(_INSERT_DECISION, (*codec.decision_row(decision), *made))
    return conversation.version + 1


def _save_conversation(record: ConversationRecord, connection: apsw.Connection) -> int:
    changing = (
        record.updated_at,
        record.served_head,
        record.message_count,
        record.signature,
        record.has_tools,
        record.state,
    )
    if record.version:
        where = (record.id, record.version, record.tenant)
        saved = connection.execute(_UPDATE_CONVERSATION, (*changing, *where))
    else:
        fixed = (record.id, record.tenant, record.source, record.parent_id, record.external_key)
        values = (*fixed, 1, record.created_at, *changing, record.root_id)
        saved = connection.execute(_INSERT_CONVERSATION, values)
    rows: list[Any] = saved.fetchall()
    if not rows:
        raise _refusal(record, connection)
    return rows[0][0]  # type: ignore[no-any-return]


def _refusal(record: ConversationRecord, connection: apsw.Connection) -> StoreError:
    find = "SELECT version, tenant FROM conversations WHERE id = ?"
    version, tenant = connection.execute(find, (record.id,)).get or (0, record.tenant)
    if tenant != record.tenant:
        return StoreError(f"conversation {record.id!r} is another tenant's")
    return VersionConflict(record.id, expected=record.version, actual=version)


def _save_run(
    call: CallRecord, run: RunUpdate, conversation_pk: int, connection: apsw.Connection
) -> None:
    tenant = call.conversation.tenant
    found: list[Any] = connection.execute(_FIND_RUN, (run.id, tenant)).fetchall()
    steps = [step for step in call.steps if step.run_id == run.id]
    injected = [row for row in call.injections if row.run_id == run.id]
    if not found and _are_unique(steps, injected):
        _save_new_run(tenant, run, conversation_pk, steps, injected, connection)
        return
    if found:
        pk, outcome, source, tags, *stored = found[0]
        tags = _add_tags(pk, run, tags, connection)
        outcome, source = settled_outcome((outcome, source), run)
        totals = codec.totals_of(stored)
    else:
        totals, tags = RunTotals(), codec.tags_json(run.tags)
        values = (run.id, conversation_pk, tenant, *codec.update_row(run))
        connection.execute(_INSERT_RUN, (*values, *codec.totals_row(totals)))
        pk, outcome, source = connection.last_insert_rowid(), run.outcome, run.outcome_source
    plan = _keep_steps(pk, steps, connection, newest=totals.steps if found else -1)
    given = [row.source for row in injected if _keep_injection(pk, row, connection)]
    totals = plan.totals(totals, given)
    _add_usage((tenant, tags), usage_rows(run, plan.scored, plan.called), connection)
    latest = (run.updated_at, run.ended_at, run.state, outcome, source)
    policy = (run.mode, run.policy_digest, run.model_requested)
    connection.execute(_UPDATE_RUN, (*latest, *policy, *codec.totals_row(totals), pk))


def _are_unique(steps: Sequence[StepRow], injected: Sequence[InjectionRow]) -> bool:
    """Whether no two rows have one key."""
    keys = {(row.step_index, row.ordinal) for row in injected}
    return len({s.step_index for s in steps}) == len(steps) and len(keys) == len(injected)


def _save_new_run(
    tenant: str,
    run: RunUpdate,
    conversation_pk: int,
    steps: Sequence[StepRow],
    injected: Sequence[InjectionRow],
    connection: apsw.Connection,
) -> None:
    """Write a run of which nothing is stored: its row has its totals at once."""
    plan = plan_steps(steps, {})
    given = [row.source for row in injected if row.applied]
    totals = plan.totals(RunTotals(), given)
    values = (run.id, conversation_pk, tenant, *codec.update_row(run))
    connection.execute(_INSERT_RUN, (*values, *codec.totals_row(totals)))
    pk = connection.last_insert_rowid()
    _keep_steps(pk, steps, connection, newest=-1)
    for row in injected:
        _keep_injection(pk, row, connection)
    _add_usage(
        (tenant, codec.tags_json(run.tags)), usage_rows(run, plan.scored, plan.called), connection
    )


def _add_tags(pk: int, run: RunUpdate, stored: str, connection: apsw.Connection) -> str:
    """Add the tags of new names; those of the first call that had one stay. Returns them all."""
    known = orjson.loads(stored) if run.tags else {}
    if run.tags.keys() - known.keys():
        tags = codec.tags_json({**run.tags, **known})
        connection.execute("UPDATE runs SET tags = ? WHERE pk = ?", (tags, pk))
        return tags
    return stored


def _keep_injection(run_pk: int, row: InjectionRow, connection: apsw.Connection) -> bool:
    """Whether guidance that reached the model is recorded for the first time."""
    connection.execute(_INSERT_INJECTION, (run_pk, *codec.injection_row(row)))
    return row.applied and connection.changes() > 0


def _add_usage(whose: tuple[str, str], rows: Iterable[Row], connection: apsw.Connection) -> None:
    for row in rows:
        connection.execute(_ADD_USAGE, (*whose, *row))


def _keep_steps(
    run_pk: int, steps: Sequence[StepRow], connection: apsw.Connection, *, newest: int
) -> StepPlan:
    """Write a run's steps; `newest`: the highest index that is stored, -1 for a new run. Steps
    above it, such as those of a history seen for the first time, need no look-up."""
    stored = {}
    for index in {step.step_index for step in steps if step.step_index <= newest}:
        row = connection.execute(_FIND_STEP, (run_pk, index)).get
        if row is not None:
            stored[index] = _stored_step(*row)
    plan = plan_steps(steps, stored)
    connection.executemany(_INSERT_STEP, [(run_pk, *codec.step_row(step)) for step in plan.fresh])
    for late in plan.late:
        values = (*codec.score_row(late.step), codec.content_json(late.content))
        connection.execute(_UPDATE_SCORES, (*values, run_pk, late.step.step_index))
    for index, (call, content) in plan.calls.items():
        values = (codec.call_json(call), codec.content_json(content))
        connection.execute(_UPDATE_CALL, (*values, run_pk, index))
    return plan


def _stored_step(call: str | None, scored: int, state: str, content: str | None) -> StoredStep:
    return StoredStep(
        state=state,
        scored=bool(scored),
        call=None if call is None else codec.call_of(call),
        content=codec.content_of(content),
    )
