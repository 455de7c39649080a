"""The reference suite over one run: its monitors see the text of one call at a time."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from gateway.steering.monitors.settings import MonitorSettings
from gateway.steering.monitors.suite import Suite
from gateway.steering.transcript.steps import Action, Step
from gateway.wire.coerce import lowered

# Plain substrings, so that "0 errors" is an error. Source: reference section 1.3.
ERROR_MARKS = ("error", "exception", "traceback", "failed", "not found", "assertion", "invalid")


class CallText(Struct, frozen=True, kw_only=True):
    """`name` is empty when nothing was called; `failed`: flagged as an error, or reads like one."""

    name: str
    arguments: str
    observation: str
    lowered_observation: str
    thought: str
    failed: bool


def calls_of(step: Step) -> Iterator[CallText]:
    """The calls of a step in order: parallel ones count each, the thought goes with the first."""
    for number, action in enumerate(step.actions or (Action(name=""),)):
        lower = lowered(action.observation)
        yield CallText(
            name=action.name,
            arguments=action.arguments,
            observation=action.observation,
            lowered_observation=lower,
            thought="" if number else step.thought,
            failed=action.is_error or any(mark in lower for mark in ERROR_MARKS),
        )


class ReferenceSuite(Suite[CallText]):
    """The active reference monitors over one run."""

    __slots__ = ()

    def __init__(self, settings: MonitorSettings) -> None:
        super().__init__(settings, settings)

    def push(self, step: Step) -> None:
        """Observe the next step of the run."""
        for call in calls_of(step):
            for monitor in self.monitors.values():
                monitor.push(call)
