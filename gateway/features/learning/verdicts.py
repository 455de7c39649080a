"""Verdicts on a run: reported, or derived from what a person did and said after it, from its last
tests, or from its end.

The best of the derived ones becomes its outcome, unless one was reported."""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from gateway.core.fsm import FSMState
from gateway.core.step import Step
from gateway.features.learning.reading import ReadCallOfRun, read_run
from gateway.steering.evidence.results import EMPTY
from gateway.steering.transcript.interventions import AfterAnswer, Intervention, said_in
from gateway.steering.transcript.message_kinds import accepted, kind_chances
from gateway.stores.learning import OutcomeRow
from gateway.stores.records import StepContent, StepRow
from gateway.stores.sql.learning import LearningStore
from gateway.stores.sql.runs import RunStore
from gateway.stores.totals import DERIVED, RunRecord
from gateway.stores.traces import RunTrace
from gateway.tasks import off_loop

# The sources, the best first; those reported rank alike, and the newest of them wins.
RANKS = (
    "told_header",
    "told_api",
    "told_cli",
    "interruption",
    "correction",
    "result",
    "moved_on",
    "abandoned",
)

_REPORTED = RANKS[:3]
USED_FROM = 0.7  # confidence below which a verdict is not used

# Share of right verdicts by source. Source: `gateway learn measure` on the development runs, 58 and
# 29 verdicts. What the person says next has the probability of its kind.
PRECISION: Mapping[str, float] = MappingProxyType({"result": 0.83, "abandoned": 0.93})
# Confidence that work which the person stopped or rejected with words was wrong: of 50 messages
# after an interruption 37 asked for something else. Source: docs/evidence.md.
STOPPED = 0.74
_MOST = 0.99  # a derived verdict is never as sure as a reported one


def is_test(call: ReadCallOfRun) -> bool:
    """Whether a call ran tests or a build, by its program."""
    program = call.reading.call.program
    return program is not None and _TESTS.search(program) is not None


# Test runners only: with scripts of the agent's own making the precision was .67.
_TESTS = re.compile(
    r"pytest|unittest|\b(?:tox|nox|jest|vitest|rspec|phpunit|ctest|mocha|ava)\b|runtests|-m test\b"
    r"|\b(?:manage\.py|npm|yarn|pnpm|bun|deno|cargo|go|dotnet|swift|mix|bazel|make) (?:run )?test"
    r"|\b(?:mvnw?|gradlew?)\b.{0,80}\btest|bin/test|\btests?/",
    re.IGNORECASE,
)


# Source, verdict, place and confidence.
Derived = tuple[str, str, str, float]


def implicit(
    calls: Sequence[ReadCallOfRun],
    *,
    answered: bool,
    failing_state: bool = False,
    next_task: str | None = None,
    acts: Collection[Intervention] = (),
    before: str = "",
) -> list[Derived]:
    """Returns verdicts read off a run that is over. `answered`: it ended with a final answer.
    `failing_state`: it ended in SLOW or SKIP. `next_task`: the person's next message, if any;
    `before`: what the agent had said. `acts`: what the person did to the last answer. Acts
    without words give no verdict: after 42 % of them the work was wrong, which is too close to
    chance."""
    stops = {act.kind for act in acts if act.words}
    found: list[Derived] = []
    tests = [call for call in calls if is_test(call) and not call.reading.transient]
    if tests and answered:
        last = tests[-1]
        verdict = "success"
        if last.reading.failure:
            verdict = "failure"
        found.append(("result", verdict, f"step {last.step}", PRECISION["result"]))
    if next_task and (answered or stops):
        found += _by_person(next_task, stops, before)
    failure = None
    if calls:
        failure = calls[-1].reading.failure
    last_failed = failure is not None and failure.kind != EMPTY
    if not answered and calls and (last_failed or failing_state):
        found.append(("abandoned", "failure", f"step {calls[-1].step}", PRECISION["abandoned"]))
    return found


def _by_person(said: str, acts: Collection[str], before: str) -> Iterator[Derived]:
    """The verdict of what the person did and said next: accepted if they go on or turn to something
    new, wrong if they stopped the agent or rejected its call with words; else none."""
    event: Literal["message", "interrupt", "reject"] = "message"
    if "reject" in acts:
        event = "reject"
    elif "interrupt" in acts:
        event = "interrupt"
    goes_on = min(accepted(kind_chances(said, event=event, before=before)), _MOST)
    place = "the next message"
    if event != "message" and goes_on < STOPPED:
        yield "interruption", "failure", place, STOPPED
    elif "rewind" not in acts and goes_on >= USED_FROM:
        yield "moved_on", "success", place, round(goes_on, 2)


def best(outcomes: Sequence[OutcomeRow]) -> OutcomeRow | None:
    """The run's outcome: the best source that is used, its newest verdict on the task."""
    usable = [
        (0 if row.source in _REPORTED else RANKS.index(row.source), -position, row)
        for position, row in enumerate(outcomes)
        if row.metric == "task" and row.verdict and row.source in RANKS and row.weight >= USED_FROM
    ]
    if usable:
        return min(usable)[2]
    return None


_FAILING = (FSMState.SLOW.value, FSMState.SKIP.value)
# Source of a run's outcome in the run log -> of the verdict.
_TOLD = {"header": "told_header", "api": "told_api", "cli": "told_cli"}


@dataclass(eq=False)
class Verdicts:
    """The verdicts on the runs of one store; keeping the same ones again changes nothing."""

    store: LearningStore  # keeps the verdicts
    runs: RunStore  # the run log

    async def keep(self, trace: RunTrace, calls: Sequence[ReadCallOfRun]) -> int:
        """Keep the verdicts on a run that is over, and on the one before it in the conversation;
        the number of new verdicts."""
        new = 0
        run = trace.run
        if run.outcome and run.outcome_source in _TOLD:
            new += await self.add(run, _TOLD[run.outcome_source], run.outcome, weight=1.0)
        new += await self._read_off(trace, calls, "")
        if earlier := await self.earlier(run):
            before = await off_loop(read_run, steps_of(earlier))
            new += await self._read_off(earlier, before, opening_words(trace))
        return new

    async def unforgotten(self, run_id: str, tenant: str | None) -> RunTrace | None:
        """A stored run; None if it is unknown or forgotten."""
        trace = await self.runs.get_run(run_id, tenant=tenant)
        if trace is None or run_id in await self.store.forgotten(trace.run.tenant):
            return None
        return trace

    async def earlier(self, run: RunRecord) -> RunTrace | None:
        """The previous run of the conversation; None for the first one, and if it is forgotten."""
        if not run.sequence:
            return None
        return await self.unforgotten(f"{run.conversation_id}.{run.sequence - 1}", run.tenant)

    async def _read_off(
        self, trace: RunTrace, calls: Sequence[ReadCallOfRun], next_task: str
    ) -> int:
        run = trace.run
        last = None
        if trace.steps:
            last = trace.steps[-1].content
        human = last.human if last else ()
        acts = [act for act in human if act.of_reply or (act.kind == "reject" and act.words)]
        said = next((act.words for act in acts if act.words), next_task)
        found = implicit(
            calls,
            answered=run.state == FSMState.END.value,
            failing_state=run.state in _FAILING,
            next_task=said,
            acts=acts,
            before=last.reply_text if last else "",
        )
        new = 0
        for source, verdict, where, weight in found:
            new += await self.add(run, source, verdict, weight=weight, where=where)
        await self.choose(run)
        return new

    async def choose(self, run: RunRecord) -> None:
        """Make the best derived verdict the run's outcome, unless one was reported."""
        if run.outcome is not None and run.outcome_source != DERIVED:
            return
        chosen = best(await self.store.outcomes(run.tenant, run.id))
        if chosen and chosen.source not in _REPORTED and chosen.verdict != run.outcome:
            await self.runs.set_outcome(run.id, chosen.verdict, source=DERIVED, tenant=run.tenant)

    async def add(
        self, run: RunRecord, source: str, verdict: str, weight: float, where: str = ""
    ) -> bool:
        """Keep a verdict; False when it is known."""
        row = OutcomeRow(
            run_id=run.id,
            tenant=run.tenant,
            source=source,
            verdict=verdict,
            weight=weight,
            at=run.last_at,
            evidence=where,
        )
        return await self.store.add_outcome(row)


def opening_words(trace: RunTrace) -> str:
    """The person's own words in the messages that a run began with; "" if they are not stored."""
    said = ""
    if trace.steps and trace.steps[0].step_index == 0:
        said = typed_at(trace.steps[0])
    return said or trace.run.task_preview


def typed_at(step: StepRow) -> str:
    """The person's own words in the messages before a step; "" if they are not stored."""
    content = step.content or StepContent()
    said = said_in([{"role": each.role, "content": each.text} for each in content.messages])
    return AfterAnswer(said=said).words


def steps_of(trace: RunTrace) -> list[Step]:
    """The steps of a stored run with the index that the run log gives them."""
    names = ("thought", "reasoning", "actions", "prompted")
    return [
        Step(index=row.step_index, **{name: getattr(row.content, name) for name in names})
        for row in trace.steps
        if row.content is not None and row.step_index > 0
    ]
