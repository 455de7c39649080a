"""Runs to learn from, written as calls and their results."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from gateway.learning.reading import ReadCallOfRun, read_run
from gateway.learning.sources import SourceRun, instance
from gateway.steering.guidance.pattern import Lesson, Pattern, Status
from gateway.steering.transcript.steps import Action, Step

Call = tuple[str, dict[str, Any], str]
"""Tool, arguments, result."""


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
        found[call.key] = instance(run, call.step, fields, lesson, run.project[0])
    return list(found.values())
