"""Runs to learn from, written as calls and their results."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from gateway.learning.contrast import Contrast
from gateway.learning.mining import Finding, MinedRun, mine
from gateway.learning.reading import ReadCallOfRun, read_run
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
) -> MinedRun:
    """A run of these calls, a conversation of its own."""
    return MinedRun(
        id=id, tenant=tenant, conversation=f"c-{id}", task=task, steps=steps(calls), at=100.0
    )


def read(calls: Sequence[Call]) -> list[ReadCallOfRun]:
    """The calls as learning reads them."""
    return read_run(steps(calls))


def learned(calls: Sequence[Call], contrast: Contrast | None = None, **which: str) -> list[Finding]:
    """What a run of these calls teaches; `contrast`: the other runs of its workload."""
    mined = run(calls, **which)
    return mine(mined, read_run(mined.steps), expires_s=10.0, contrast=contrast)


def text(finding: Finding) -> str:
    """What the lesson says; empty for a finding that is no lesson."""
    return "" if finding.pattern is None else str(finding.pattern.fields["recommended_action"])
