"""Messages, steps and records in one line each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from gateway.core.decision_settings import Policy
from gateway.core.ledger.ledger import Ledger
from gateway.core.monitors import MonitorSettings, Readings, make_suite
from gateway.core.scoring.scorer import DifficultySettings
from gateway.core.step import Action, Step
from gateway.steering.evidence.action_facts import describe
from gateway.steering.transcript.steps import steps_from_records

Message = dict[str, Any]


def system(text: str = "You are an agent.") -> Message:
    return {"role": "system", "content": text}


def user(text: Any = "Fix the failing test.") -> Message:
    return {"role": "user", "content": text}


def call(name: str = "bash", arguments: Any = "{}", id: str | None = "c1") -> Message:
    entry: Message = {"type": "function", "function": {"name": name, "arguments": arguments}}
    return entry if id is None else {"id": id, **entry}


def assistant(text: Any = None, *calls: Message, **more: Any) -> Message:
    message: Message = {"role": "assistant", "content": text, **more}
    return {**message, "tool_calls": list(calls)} if calls else message


def tool(text: Any = "done", id: str | None = "c1", **more: Any) -> Message:
    message: Message = {"role": "tool", "content": text, **more}
    return message if id is None else {**message, "tool_call_id": id}


def acts(name: str = "bash", *, thought: str = "", observation: str = "", **more: Any) -> Step:
    """A step with one call."""
    action = Action(name=name, observation=observation, **more)
    return Step(index=0, thought=thought, actions=(action,))


def thinks(thought: str) -> Step:
    """A step without a call."""
    return Step(index=0, thought=thought)


def reference(**values: Any) -> MonitorSettings:
    """Monitor settings of suite `reference`."""
    return MonitorSettings(suite="reference", **values)


def evaluate(
    steps: Iterable[Step | Mapping[str, Any]], settings: MonitorSettings | None = None
) -> Readings:
    """The readings over steps, or over records of steps."""
    suite = make_suite(settings or MonitorSettings())
    ledger = Ledger(describe)
    for step in steps:
        for each in (step,) if isinstance(step, Step) else steps_from_records([step]):
            suite.push(ledger.observe(each))
    return suite.readings()


def evaluate_reference(steps: Any, settings: MonitorSettings | None = None) -> Readings:
    """The readings of suite `reference`."""
    return evaluate(steps, settings or reference())


REFERENCE = Policy(
    difficulty=DifficultySettings(scorer="heuristic"),
    monitors=reference(),
    run_boundary="final_answer",
)
"""The reference's own scorer, monitors and run boundary."""
