"""Writes the steps of one call: what is new is inserted, what is stored is completed."""

# ruff: noqa: S608 - statements are put together from names of this package; values are bound

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import apsw

from gateway.stores import codec
from gateway.stores.late_scores import LateScore
from gateway.stores.records import StepRow
from gateway.stores.totals import is_same_call, repeated_call

_INSERT_STEP = f"""
INSERT INTO steps (run_pk, {", ".join(codec.STEP_COLUMNS)})
VALUES ({", ".join("?" * (1 + len(codec.STEP_COLUMNS)))})
ON CONFLICT (run_pk, step_index) DO NOTHING
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


@dataclass(slots=True)
class KeptSteps:
    """What the steps of a commit were: `fresh` ones, `called` ones whose calls are to be counted,
    `retries` of calls that were counted before, and the scores of stored steps that had none."""

    fresh: list[StepRow] = field(default_factory=list)
    called: list[StepRow] = field(default_factory=list)
    late: list[LateScore] = field(default_factory=list)
    retries: int = 0

    @property
    def scored(self) -> list[StepRow]:
        """The steps whose scores are to be counted."""
        return [*self.fresh, *[each.step for each in self.late]]


def keep_steps(
    run_pk: int, steps: Sequence[StepRow], connection: apsw.Connection, *, new_run: bool
) -> KeptSteps:
    """Write a run's steps. A new run, such as that of a history seen for the first time, has none
    of them, which one statement can insert."""
    kept = KeptSteps()
    if not new_run or len({step.step_index for step in steps}) < len(steps):
        for step in steps:
            _keep_step(run_pk, step, connection, kept)
        return kept
    connection.executemany(_INSERT_STEP, [(run_pk, *codec.step_row(step)) for step in steps])
    kept.fresh += steps
    kept.called += [step for step in steps if step.call]
    return kept


def _keep_step(run_pk: int, step: StepRow, connection: apsw.Connection, kept: KeptSteps) -> None:
    connection.execute(_INSERT_STEP, (run_pk, *codec.step_row(step)))
    if connection.changes():
        kept.fresh.append(step)
        if step.call is not None:
            kept.called.append(step)
        return
    if step.call is None and step.composite is None:
        return
    place = (run_pk, step.step_index)
    stored, scored, state, content = connection.execute(_FIND_STEP, place).get
    if step.composite is not None and not scored:
        late = LateScore(step=step, state=state, content=codec.content_of(content))
        merged = codec.content_json(late.merged_content)
        connection.execute(_UPDATE_SCORES, (*codec.score_row(step), merged, *place))
        kept.late.append(late)
    if step.call is None:
        return
    call = step.call
    if stored is not None:
        before = codec.call_of(stored)
        if is_same_call(before, call):
            return
        call = repeated_call(before, call)
        kept.retries += 1
    kept.called.append(step)
    values = (codec.call_json(call), codec.content_json(step.content))
    connection.execute(_UPDATE_CALL, (*values, *place))
