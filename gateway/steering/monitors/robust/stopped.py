"""Stopped: a person refuses or interrupts the agent's work again and again."""

from __future__ import annotations

from gateway.steering.evidence.observation import ObservedStep
from gateway.steering.monitors.settings import RobustSettings


class Stopped:
    """Whether the person has just stopped the agent for the third time within twelve steps; see
    `StepReader`. Answers to a question or a plan in plan mode are no stops."""

    __slots__ = ("_recovery", "_score")

    def __init__(self, settings: RobustSettings) -> None:
        self._recovery = settings.recovery
        self._score = 0.0

    def push(self, step: ObservedStep) -> None:
        """Look at what came before the step."""
        self._score = 1.0 if step.facts.cue == "stopped" else self._score * self._recovery

    def reading(self) -> tuple[float, str]:
        """1 right after such a stop, then decaying."""
        if self._score < 0.01:
            return 0.0, ""
        return self._score, "the user stopped the agent 3 times within a few steps"
