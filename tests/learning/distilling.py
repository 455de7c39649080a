"""Runs that a model is asked about, a model that answers, and gateways that ask it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from gateway.config.models import LearningSettings
from gateway.learning.worker import Learner, Report
from gateway.steering.transcript.steps import Action
from gateway.stores.records import CallRecord
from steering_gateway_testing import ReceivedRequest, Reply, Usage
from steering_gateway_testing.store_conformance.records import (
    a_first_step,
    a_step,
    one_run,
    some_content,
)
from tests.learning.runs import Call

USED = Usage(prompt_tokens=700, completion_tokens=50)
"""What each answer of the model uses."""
TOKENS = USED.prompt_tokens + USED.completion_tokens
MODEL = "distil"

PROPOSAL: dict[str, Any] = {
    "situation": "A script stopped with a type error.",
    "avoid": "Running the same script again changed nothing.",
    "move": "The run went on after `other.py` was called with python in its place.",
    "applies_when": "",
    "steps": [1, 2],
    "confidence": 0.8,
}


def unsaid(number: int = 0, words: str = "") -> list[Call]:
    """A failure whose program worked in the next call; `words`: at the end of the last result,
    where the tool that worked says what it likes."""
    failed = "Traceback (most recent call last):\nTypeError: no"
    return [
        ("bash", {"command": f"python check{number}.py"}, failed),
        ("bash", {"command": "python other.py"}, f"done\n{words}"),
    ]


def stored(number: int, calls: Sequence[Call], **changes: Any) -> CallRecord:
    """A finished run of these calls, as the run log has it."""
    run_id = f"r{number:04}"
    steps = [a_first_step(run_id)]
    for index, (name, arguments, result) in enumerate(calls, start=1):
        action = Action(name=name, arguments=json.dumps(arguments), observation=result)
        steps.append(a_step(index, run_id, content=some_content(actions=(action,))))
    values = {"steps": tuple(steps), "state": "END", "task_preview": f"task {number}"}
    return one_run(number, **(values | changes))


def proposing(**changes: Any) -> Reply:
    """The model's answer."""
    return Reply(json.dumps(PROPOSAL | changes), usage=USED)


def asked(requests: Sequence[ReceivedRequest]) -> list[ReceivedRequest]:
    """The requests to the model."""
    return [request for request in requests if request.json["model"] == MODEL]


async def fill(stores: Any, runs: Sequence[CallRecord], model: str = MODEL) -> int:
    """Store runs and read them; how many jobs that made."""
    for record in runs:
        await stores.states.commit(record)
    return (await read_again(stores, [record.runs[0].id for record in runs], model)).jobs


async def read_again(stores: Any, runs: Sequence[str], model: str = MODEL) -> Report:
    """Read the runs of these ids; what that came to."""
    learner = Learner(
        stores.learning, stores.runs, stores.states, lambda: LearningSettings(model=model)
    )
    report = Report()
    for run in runs:
        report.add(await learner.read(run, None))
    return report
