"""Commits that cannot be part of a group: of calls that are stored in part already."""

# ruff: noqa: S608 - statements are put together from names of this package; values are bound

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import asyncpg
from msgspec.structs import replace

from gateway.stores import codec
from gateway.stores.late_scores import LateScore
from gateway.stores.postgres.group import Delta, Prepared, parameters, prepare
from gateway.stores.postgres.statement import COMMIT, COMMIT_ALONE
from gateway.stores.postgres.text import stored_text
from gateway.stores.protocols import StoreError, VersionConflict
from gateway.stores.records import CallRecord, CallRow, ConversationRecord, RunUpdate, StepRow
from gateway.stores.totals import RunTotals, is_same_call, repeated_call

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
    """What of one run's rows is new, next to what is stored: `calls` by step, and the injections.

    `unscored`: state and content of the stored steps without scores; `late`: those that get them.
    `updates`: steps whose stored call is replaced.
    """

    calls: dict[int, CallRow | None] = field(default_factory=dict)
    unscored: dict[int, tuple[str, str | None]] = field(default_factory=dict)
    injections: set[tuple[int, int]] = field(default_factory=set)
    late: list[LateScore] = field(default_factory=list)
    updates: dict[int, tuple[CallRow, str | None]] = field(default_factory=dict)

    def delta(self, call: CallRecord, run: RunUpdate) -> Delta:
        """The new rows of a run, and what the call adds to its totals."""
        fresh: list[StepRow] = []
        called: list[StepRow] = []
        retries = 0
        for step in (step for step in call.steps if step.run_id == run.id):
            made, known = step.call, step.step_index in self.calls
            self._score(step, fresh)
            stored = self.calls.get(step.step_index)
            if not known:
                fresh.append(step)
            elif made is None or (stored is not None and is_same_call(stored, made)):
                continue
            if made is not None:
                called.append(step)
                retries += stored is not None
            kept = made if made is None or stored is None else repeated_call(stored, made)
            self.calls[step.step_index] = kept
            if known and kept is not None:
                self._replace(fresh, step, kept)
        added = [row for row in call.injections if row.run_id == run.id and self._is_new(row)]
        given = [row.source for row in added if row.applied]
        totals = RunTotals().including(
            fresh,
            [step.call for step in called if step.call],
            retries=retries,
            injections=len(given),
            sources=given,
            late=self.late,
        )
        scored = [each.step for each in self.late]
        return Delta(steps=fresh, called=called, late=scored, injections=added, totals=totals)

    def _score(self, step: StepRow, fresh: list[StepRow]) -> None:
        """Note the scores of a step that was stored, or comes in the same call, without them."""
        if step.composite is None:
            return
        if step.step_index in self.unscored:
            state, content = self.unscored.pop(step.step_index)
            self.late.append(LateScore(step=step, state=state, content=codec.content_of(content)))
            return
        for position, each in enumerate(fresh):
            if each.step_index == step.step_index and each.composite is None:
                late = LateScore(step=step, state=each.state, content=each.content)
                fresh[position] = late.scored(each)

    def _replace(self, fresh: list[StepRow], step: StepRow, call: CallRow) -> None:
        for position, each in enumerate(fresh):
            if each.step_index == step.step_index:  # the step occurs twice in one call
                content = step.content or each.content
                fresh[position] = replace(each, call=call, content=content)
                return
        self.updates[step.step_index] = (call, codec.content_json(step.content))

    def _is_new(self, row: Any) -> bool:
        key = (row.step_index, row.ordinal)
        if key in self.injections:
            return False
        self.injections.add(key)
        return True


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
            if merge.late or merge.updates:
                await _complete(connection, keys[stored_text(run_id)], merge)


async def _complete(connection: asyncpg.Connection, pk: int, merge: _Merge) -> None:
    """Write what stored steps of a run lacked."""
    for late in merge.late:
        content = codec.content_json(late.merged_content)
        scores = codec.score_row(late.step)
        await connection.execute(_UPDATE_SCORES, pk, late.step.step_index, content, *scores)
    for index, (made, content) in merge.updates.items():
        await connection.execute(_UPDATE_CALL, pk, index, codec.call_json(made), content)


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
    for index, stored, scored, *rest in await connection.fetch(_STEPS, pk, indexes):
        merge.calls[index] = None if stored is None else codec.call_of(stored)
        if not scored:
            merge.unscored[index] = tuple(rest)
    indexes = [row.step_index for row in call.injections if row.run_id == run.id]
    merge.injections |= {tuple(row) for row in await connection.fetch(_INJECTIONS, pk, indexes)}
    return merge
