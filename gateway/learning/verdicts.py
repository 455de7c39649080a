"""Verdicts on a run: reported, or derived from its last tests, the user's correction or its end.

The best of the derived ones becomes its outcome, unless one was reported.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from gateway.learning.mining import ReadCallOfRun, read_run
from gateway.steering.evidence.results import EMPTY
from gateway.steering.fsm import FSMState
from gateway.steering.transcript.steps import Step
from gateway.stores.learning import LearningStore, OutcomeRow
from gateway.stores.protocols import RunStore
from gateway.stores.queries import RunTrace
from gateway.stores.totals import DERIVED, RunRecord

RANKS = (
    *("told_header", "told_api", "told_cli"),
    *("result", "correction", "abandoned", "moved_on"),
)
"""The sources, the best first; those reported rank alike, and the newest of them wins."""

_REPORTED = RANKS[:3]
USED_FROM = 0.7  # precision below which a source is not used

PRECISION: Mapping[str, float] = MappingProxyType(
    {"result": 0.83, "correction": 0.71, "abandoned": 0.93, "moved_on": 0.0}
)
"""Share of right verdicts by source. Source: `gateway learn measure` on the development runs, 58,
17 and 29 verdicts; `moved_on` cannot be measured there, so it is not used."""

_CORRECTS = re.compile(
    r"\b(?:still (?:fails?|failing|broken|not|does ?n.t|wrong)|(?:that|this|it)(?: is|'s| was)? "
    r"(?:wrong|not (?:right|correct|what)|incorrect|broken)|does(?: not|n't) work|did(?: not|n't)"
    r" work|not what i|you (?:forgot|missed|broke|did(?: not|n't))|try again|same error|wrong"
    r" (?:file|place|answer|one)|undo (?:that|this)|revert (?:that|this)|that failed)\b",
    re.IGNORECASE,
)
_READ_CHARS = 600


def is_test(call: ReadCallOfRun) -> bool:
    """Whether a call ran tests or a build, by its program."""
    program = call.reading.call.program
    return program is not None and _TESTS.search(program) is not None


_TESTS = re.compile(
    r"pytest|unittest|\b(?:tox|nox|jest|vitest|rspec|phpunit|ctest|mocha|ava)\b|runtests|-m test\b"
    r"|\b(?:manage\.py|npm|yarn|pnpm|bun|deno|cargo|go|dotnet|swift|mix|bazel|make) (?:run )?test"
    r"|\b(?:mvnw?|gradlew?)\b.{0,80}\btest|bin/test|\btests?/",
    re.IGNORECASE,
)
"""Test runners only: with scripts of the agent's own making the precision was .67."""


def implicit(
    calls: Sequence[ReadCallOfRun],
    *,
    answered: bool,
    failing_state: bool = False,
    next_task: str | None = None,
) -> list[tuple[str, str, str]]:
    """Verdicts read off a run that is over: (source, verdict, place). `answered`: it ended with a
    final answer; `failing_state`: in SLOW or SKIP; `next_task`: the user's next message, if any."""
    found: list[tuple[str, str, str]] = []
    tests = [call for call in calls if is_test(call) and not call.reading.transient]
    if tests and answered:
        last = tests[-1]
        verdict = "failure" if last.reading.failure else "success"
        found.append(("result", verdict, f"step {last.step}"))
    if answered and next_task is not None:
        corrects = _CORRECTS.search(next_task[:_READ_CHARS]) is not None
        source, verdict = ("correction", "failure") if corrects else ("moved_on", "success")
        found.append((source, verdict, "the next message"))
    failure = calls[-1].reading.failure if calls else None
    last_failed = failure is not None and failure.kind != EMPTY
    if not answered and calls and (last_failed or failing_state):
        found.append(("abandoned", "failure", f"step {calls[-1].step}"))
    return found


def best(outcomes: Sequence[OutcomeRow]) -> OutcomeRow | None:
    """The run's outcome: the best source that is used, its newest verdict on the task."""
    usable = [
        (0 if row.source in _REPORTED else RANKS.index(row.source), -position, row)
        for position, row in enumerate(outcomes)
        if row.metric == "task" and row.verdict and row.source in RANKS and row.weight >= USED_FROM
    ]
    return min(usable)[2] if usable else None


_FAILING = (FSMState.SLOW.value, FSMState.SKIP.value)
_TOLD = {"header": "told_header", "api": "told_api", "cli": "told_cli"}
"""Source of a run's outcome in the run log -> of the verdict."""


@dataclass(eq=False)
class Verdicts:
    """The verdicts on the runs of one store; keeping the same ones again changes nothing."""

    store: LearningStore
    runs: RunStore

    async def keep(self, run: RunRecord, calls: Sequence[ReadCallOfRun]) -> int:
        """Keep the verdicts on a run that is over, and on the one before it in the conversation;
        the number of new verdicts."""
        new = 0
        if run.outcome and run.outcome_source in _TOLD:
            new += await self._add(run, _TOLD[run.outcome_source], run.outcome, 1.0)
        new += await self._read_off(run, calls, None)
        if run.sequence:
            earlier = await self.runs.get_run(
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
        # The best derived verdict becomes the run's outcome, unless one was reported.
        if run.outcome is None or run.outcome_source == DERIVED:
            chosen = best(await self.store.outcomes(run.tenant, run.id))
            if chosen and chosen.source in PRECISION and chosen.verdict != run.outcome:
                await self.runs.set_outcome(
                    run.id, chosen.verdict, source=DERIVED, tenant=run.tenant
                )
        return new

    async def _add(
        self, run: RunRecord, source: str, verdict: str, weight: float, where: str = ""
    ) -> bool:
        row = OutcomeRow(
            run_id=run.id,
            tenant=run.tenant,
            source=source,
            verdict=verdict,
            weight=weight,
            at=run.updated_at,
            evidence=where,
        )
        return await self.store.add_outcome(row)


def steps_of(trace: RunTrace) -> list[Step]:
    """The steps of a stored run with the index that the run log gives them."""
    names = ("thought", "reasoning", "actions", "prompted")
    return [
        Step(index=row.step_index, **{name: getattr(row.content, name) for name in names})
        for row in trace.steps
        if row.content is not None and row.step_index > 0
    ]
