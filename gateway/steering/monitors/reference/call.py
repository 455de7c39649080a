"""One call with its result, as the reference monitors see it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from msgspec import Struct

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


class CallMonitor(Protocol):
    """One monitor over the calls of one run."""

    def push(self, call: CallText) -> None:
        """Observe the next call."""
        ...

    def reading(self) -> tuple[float, str]:
        """Score in [0, 1] and the reason for it, empty at score 0."""
        ...


_NOTHING = Action(name="")


def calls_of(step: Step) -> Iterator[CallText]:
    """The calls of a step in order: parallel ones count each, the thought goes with the first."""
    thought = step.thought
    for action in step.actions or (_NOTHING,):
        lower = lowered(action.observation)
        yield CallText(
            name=action.name,
            arguments=action.arguments,
            observation=action.observation,
            lowered_observation=lower,
            thought=thought,
            failed=action.is_error or looks_like_error(lower),
        )
        thought = ""


def looks_like_error(lower: str) -> bool:
    """Whether a lower-cased observation reads like an error. Source: reference section 1.3."""
    return any(mark in lower for mark in ERROR_MARKS)
