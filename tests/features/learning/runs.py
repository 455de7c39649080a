"""Runs, written as calls and their results, and lessons and rules about them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gateway.backends import Stores
from gateway.core.pattern import Lesson, Pattern, Status, Tier, Trust
from gateway.core.step import Action, Step
from gateway.features.learning.context import project_of
from gateway.features.learning.life_cycle import lesson_id
from gateway.features.learning.reading import ReadCallOfRun, digest, read_run
from gateway.features.learning.settings import LearningSettings
from gateway.features.learning.worker import Learner, LearnReport
from gateway.steering.guidance.lessons import SAID
from gateway.stores.learning import MARK, EvidenceRow
from gateway.stores.records import CallRecord, PromptMessage
from steering_gateway_testing.store_conformance import records

Call = tuple[str, dict[str, Any], str]
"""Tool, arguments, result."""


DAY_S = 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceRun:
    """One run that a lesson comes from; `project`: as `project_of` gives it."""

    id: str
    tenant: str
    conversation: str
    task: str
    steps: Sequence[Step]
    at: float
    project: tuple[str, str] = ("", "")

    @property
    def marks(self) -> dict[str, str]:
        """The marks that keep a lesson to the project."""
        return dict(zip(("scope", "project"), self.project, strict=True))

    def evidence(self, pattern_id: str, step: int) -> EvidenceRow:
        """The run's support of a lesson."""
        return EvidenceRow(
            pattern_id=pattern_id,
            run_id=self.id,
            step_index=step,
            kind="distilled",
            tenant=self.tenant,
            conversation=self.conversation,
            task=self.task,
            at=self.at,
        )


def steps(calls: Sequence[Call]) -> list[Step]:
    """One step for each call, from index 1."""
    return [
        Step(
            index=index,
            actions=(Action(name=name, arguments=json.dumps(arguments), observation=result),),
        )
        for index, (name, arguments, result) in enumerate(calls, start=1)
    ]


def shell(command: str, result: str) -> Call:
    """A call of the shell."""
    return "bash", {"command": command}, result


def run(
    calls: Sequence[Call], id: str = "run-1", task: str = "t", tenant: str = "acme"
) -> SourceRun:
    """A run of these calls, a conversation of its own."""
    return SourceRun(
        id=id, tenant=tenant, conversation=f"c-{id}", task=task, steps=steps(calls), at=100.0
    )


def read(calls: Sequence[Call]) -> list[ReadCallOfRun]:
    """The calls as learning reads them."""
    return read_run(steps(calls))


def lessons_of(run: SourceRun) -> list[Pattern]:
    """A lesson in trial for each failure of a run."""
    found: dict[str, Pattern] = {}
    for call in read_run(run.steps):
        if call.key is None or call.key in found:
            continue
        text = f"Read what `{call.reading.head.lstrip('$')}` says, then change the call."
        lesson = Lesson(key=call.key, status=Status.TRIAL, applies_when=run.marks)
        fields = {"recommended_action": text}
        found[call.key] = Pattern(
            tier=Tier.E1,
            fields=fields,
            pattern_id=lesson_id(Tier.E1, run.tenant, call.key, run.project[0]),
            tenant=run.tenant,
            source_trace_id=f"{run.id}#{call.step}",
            lesson=lesson,
        )
    return list(found.values())


def rule(text: str, tenant: str = "default", **how: Any) -> Pattern:
    """A candidate rule that a person stated for the project `shop`, about `git push`; `origin`: who
    put it into a row."""
    folder = f"{how.get('folder', '/home/ann')}/{how.get('project', 'shop')}"
    opening = PromptMessage(role="system", text=f"Working directory: {folder}")
    scope, name = project_of([opening])
    key = f"{SAID}|{scope}|{digest(text)}"
    marks = {"said": f"please: {text}", "author": how.get("person", "ann"), "project": name}
    marks |= {"doing": how.get("doing", "git push")}
    lesson = Lesson(
        key=key,
        origin=how.get("origin", "read"),
        trust=Trust.USER,
        applies_when=marks,
        last_confirmed_at=records.START,
    )
    return Pattern(
        tier=Tier.E1,
        fields={"recommended_action": text},
        pattern_id=lesson_id(Tier.E1, tenant, key),
        tenant=tenant,
        source_trace_id="r0000#2",
        lesson=lesson,
    )


def mark(rule: str, run_id: str = "r0000", like: str = "git commit") -> EvidenceRow:
    """A person's wish to be reminded of a rule at such a call."""
    return EvidenceRow(
        pattern_id=rule,
        run_id=run_id,
        step_index=1,
        kind=MARK,
        tenant="default",
        conversation="",
        task=like,
        at=records.START,
    )


async def state(stores: Stores, number: int, text: str, **how: Any) -> Pattern:
    """Store a rule, or with a known text the support of one more run and its person."""
    made = rule(text, **how)
    said = EvidenceRow(
        pattern_id=made.pattern_id,
        run_id=f"r{number:04}",
        step_index=2,
        kind=SAID,
        tenant=made.tenant,
        conversation=f"c{number:04}",
        task="ab"[number % 2],
        at=records.START + how.get("day", 0) * DAY_S + number,
        key_name=how.get("person", "ann"),
    )
    await stores.learning.learn([(made, [said])])
    return made


def stored(number: int, calls: Sequence[Call], **changes: Any) -> CallRecord:
    """A finished run of these calls, as the run log has it."""
    run_id = f"r{number:04}"
    rows = [records.a_first_step(run_id)]
    for index, (name, arguments, result) in enumerate(calls, start=1):
        action = Action(name=name, arguments=json.dumps(arguments), observation=result)
        rows.append(records.a_step(index, run_id, content=records.some_content(actions=(action,))))
    values = {"steps": tuple(rows), "state": "END", "task_preview": f"task {number}"}
    return records.one_run(number, **(values | changes))


async def read_again(stores: Stores, runs: Sequence[str]) -> LearnReport:
    """Read the runs of these ids; what that came to."""
    learner = Learner(stores.learning, stores.runs, LearningSettings)
    report = LearnReport()
    for each in runs:
        report.add(await learner.read(each, None))
    return report
