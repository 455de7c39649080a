"""Commits that cannot be part of a group: of calls that are stored in part already."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import asyncpg

from gateway.stores import codec
from gateway.stores.commit_plan import StepPlan, StoredStep, new_injections, plan_steps
from gateway.stores.postgres.group import Delta, Prepared, parameters, prepare
from gateway.stores.postgres.statement import COMMIT, COMMIT_ALONE
from gateway.stores.postgres.text import stored_text
from gateway.stores.protocols import StoreError, VersionConflict
from gateway.stores.records import CallRecord, ConversationRecord, RunUpdate
from gateway.stores.totals import RunTotals

STORED, BARRED, CONFLICT = "stored", "barred", "conflict"

_LOCK = "SELECT version, tenant FROM conversations WHERE id = $1 FOR UPDATE"
_FIND = "SELECT version, tenant FROM conversations WHERE id = $1"
_RUNS = "SELECT id, pk, tenant FROM runs WHERE id = ANY($1::text[])"
_STEPS = """
SELECT step_index, call, composite IS NOT NULL, state, content FROM steps
WHERE run_pk = $1 AND step_index = ANY($2::int8[])
"""
_INJECTIONS = """
SELECT step_index, ordinal FROM injections WHERE run_pk = $1 AND step_index = ANY($2::int8[])
"""
_UPDATE_CALL = """
UPDATE steps SET call = $3, content = coalesce($4, content) WHERE run_pk = $1 AND step_index = $2
"""
_SCORES = ", ".join(f"{name} = ${at}" for at, name in enumerate(codec.SCORE_COLUMNS, start=4))
_UPDATE_SCORES = f"UPDATE steps SET content = $3, {_SCORES} WHERE run_pk = $1 AND step_index = $2"


async def commit_group(
    connection: asyncpg.Connection, group: Sequence[Prepared], mode: str
) -> list[str]:
    """Write the calls in one statement; for each whether it was stored, or why not."""
    rows = await connection.fetch(COMMIT, mode, *parameters(group))
    return [STORED if passed else BARRED if barred else CONFLICT for _, passed, barred in rows]


async def refusal(
    connection: asyncpg.Connection, record: ConversationRecord, find: str = _FIND
) -> StoreError | None:
    """Why a conversation cannot be saved over the version it was made from; None when it can."""
    row = await connection.fetchrow(find, stored_text(record.id))
    version, tenant = row or (0, stored_text(record.tenant))
    if tenant != stored_text(record.tenant):
        return StoreError(f"conversation {record.id!r} is another tenant's")
    if version == record.version:
        return None
    return VersionConflict(record.id, expected=record.version, actual=version)


@dataclass(slots=True)
class _Merge:
    """Stored rows of one run, by step and as keys, and what is written next to them."""

    steps: dict[int, StoredStep] = field(default_factory=dict)
    injections: set[tuple[int, int]] = field(default_factory=set)
    plan: StepPlan = field(default_factory=StepPlan)

    def delta(self, call: CallRecord, run: RunUpdate) -> Delta:
        """The new rows of a run, and what the call adds to its totals."""
        plan = self.plan = plan_steps((s for s in call.steps if s.run_id == run.id), self.steps)
        added = new_injections((i for i in call.injections if i.run_id == run.id), self.injections)
        return Delta(
            steps=plan.fresh,
            called=plan.called,
            late=[each.step for each in plan.late],
            injections=added,
            totals=plan.totals(RunTotals(), [row.source for row in added if row.applied]),
        )


async def commit_alone(
    connection: asyncpg.Connection, call: CallRecord, mode: str, *, careful: bool
) -> None:
    """Write one call next to what is stored of it, in a transaction of its own.

    Raises: StoreError, VersionConflict.
    """
    async with connection.transaction():
        refused = await refusal(connection, call.conversation, _LOCK)
        if refused is not None:
            raise refused
        keys = await _run_keys(connection, call)
        merges = {
            run.id: await _merge(connection, keys.get(stored_text(run.id)), call, run)
            for run in call.runs
        }
        prepared = prepare(call, lambda call, run: merges[run.id].delta(call, run), careful=careful)
        await connection.fetch(COMMIT_ALONE, mode, *parameters([prepared]))
        for run_id, merge in merges.items():
            if merge.plan.late or merge.plan.calls:
                await _complete(connection, keys[stored_text(run_id)], merge.plan)


async def _complete(connection: asyncpg.Connection, pk: int, plan: StepPlan) -> None:
    """Write what stored steps of a run lacked."""
    for late in plan.late:
        content = codec.content_json(late.content)
        scores = codec.score_row(late.step)
        await connection.execute(_UPDATE_SCORES, pk, late.step.step_index, content, *scores)
    for index, (made, texts) in plan.calls.items():
        values = (codec.call_json(made), codec.content_json(texts))
        await connection.execute(_UPDATE_CALL, pk, index, *values)


async def _run_keys(connection: asyncpg.Connection, call: CallRecord) -> Mapping[str, int]:
    rows = await connection.fetch(_RUNS, [stored_text(run.id) for run in call.runs])
    for run_id, _, tenant in rows:
        if tenant != stored_text(call.conversation.tenant):
            raise StoreError(f"run {run_id!r} is another tenant's")
    return {run_id: pk for run_id, pk, _ in rows}


async def _merge(
    connection: asyncpg.Connection, pk: int | None, call: CallRecord, run: RunUpdate
) -> _Merge:
    merge = _Merge()
    if pk is None:
        return merge
    indexes = [step.step_index for step in call.steps if step.run_id == run.id]
    for index, made, scored, state, content in await connection.fetch(_STEPS, pk, indexes):
        merge.steps[index] = StoredStep(
            state=state,
            scored=scored,
            call=None if made is None else codec.call_of(made),
            content=codec.content_of(content),
        )
    indexes = [row.step_index for row in call.injections if row.run_id == run.id]
    merge.injections |= {tuple(row) for row in await connection.fetch(_INJECTIONS, pk, indexes)}
    return merge
