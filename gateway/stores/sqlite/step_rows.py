"""Writes the steps of one call: what is new is inserted, what is stored is completed."""

# ruff: noqa: S608 - statements are put together from names of this package; values are bound

from __future__ import annotations

from collections.abc import Sequence

import apsw

from gateway.stores import codec
from gateway.stores.commit_plan import StepPlan, StoredStep, plan_steps
from gateway.stores.records import StepRow

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


def keep_steps(
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
