"""What a robust monitor observes of one step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from gateway.steering.evidence.features import ActionFacts, StepFacts
from gateway.steering.evidence.repeats import Repeat


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedStep:
    """The facts of a step, and each of its actions with what it repeats."""

    facts: StepFacts
    actions: tuple[tuple[ActionFacts, Repeat], ...]


class StepMonitor(Protocol):
    """One way of going wrong, followed over a run at constant cost per step."""

    def push(self, step: ObservedStep) -> None:
        """Observe the next step."""
        ...

    def reading(self) -> tuple[float, str]:
        """Score in [0, 1] after the newest step, and its reason ("" at score 0)."""
        ...
