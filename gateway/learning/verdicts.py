"""Keeps every verdict on a run, and makes the best of what was read off it the run's outcome."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from gateway.learning.mining import ReadCallOfRun, read_run
from gateway.learning.outcomes import PRECISION, best, implicit
from gateway.steering.fsm import FSMState
from gateway.steering.transcript.steps import Step
from gateway.stores.learning import LearningStore, OutcomeRow
from gateway.stores.protocols import RunStore
from gateway.stores.queries import RunTrace
from gateway.stores.totals import DERIVED, RunRecord

_FAILING = (FSMState.SLOW.value, FSMState.SKIP.value)
_TOLD = {"header": "told_header", "api": "told_api", "cli": "told_cli"}
"""Source of a run's outcome in the run log -> of the verdict."""


class Verdicts:
    """The verdicts on the runs of one store; keeping the same ones again changes nothing."""

    def __init__(self, store: LearningStore, runs: RunStore) -> None:
        self._store = store
        self._runs = runs

    async def keep(self, run: RunRecord, calls: Sequence[ReadCallOfRun]) -> int:
        """Keep what is known of a run that is over, and what it says of the one before it in the
        conversation; how many verdicts were new."""
        new = 0
        if run.outcome and run.outcome_source in _TOLD:
            new += await self._add(run, _TOLD[run.outcome_source], run.outcome, 1.0)
        new += await self._read_off(run, calls, None)
        if run.sequence:
            earlier = await self._runs.get_run(
                f"{run.conversation_id}.{run.sequence - 1}", tenant=run.tenant
            )
            if earlier is not None:
                before = await asyncio.to_thread(read_run, steps_of(earlier))
                new += await self._read_off(earlier.run, before, run.task_preview)
        return new

    async def _read_off(
        self, run: RunRecord, calls: Sequence[ReadCallOfRun], next_task: str | None
    ) -> int:
        found = implicit(
            calls,
            answered=run.state == FSMState.END.value,
            failing_state=run.state in _FAILING,
            next_task=next_task,
        )
        new = 0
        for source, verdict, where in found:
            new += await self._add(run, source, verdict, PRECISION[source], where)
        await self._apply_best(run)
        return new

    async def _add(
        self, run: RunRecord, source: str, verdict: str, weight: float, where: str = ""
    ) -> bool:
        return await self._store.add_outcome(
            OutcomeRow(
                run_id=run.id,
                tenant=run.tenant,
                source=source,
                verdict=verdict,
                weight=weight,
                at=run.updated_at,
                evidence=where,
            )
        )

    async def _apply_best(self, run: RunRecord) -> None:
        """What was read off a run becomes its outcome, as long as nobody has reported one."""
        if run.outcome is not None and run.outcome_source != DERIVED:
            return
        chosen = best(await self._store.outcomes(run.tenant, run.id))
        if chosen is not None and chosen.source in PRECISION and chosen.verdict != run.outcome:
            await self._runs.set_outcome(run.id, chosen.verdict, source=DERIVED, tenant=run.tenant)


def steps_of(trace: RunTrace) -> list[Step]:
    """The steps of a stored run with the index that the run log gives them."""
    return [
        Step(
            index=row.step_index,
            thought=row.content.thought,
            reasoning=row.content.reasoning,
            actions=row.content.actions,
            prompted=row.content.prompted,
        )
        for row in trace.steps
        if row.content is not None and row.step_index > 0
    ]
