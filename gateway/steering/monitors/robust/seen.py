"""What a robust monitor is shown of one step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from gateway.steering.features import ActionFacts, StepFacts
from gateway.steering.repeats import Repeat


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """The facts of a step, and each of its actions beside what it repeats."""

    facts: StepFacts
    actions: tuple[tuple[ActionFacts, Repeat], ...]


class RobustMonitor(Protocol):
    """One way of going wrong, followed over a run at constant cost per step."""

    def push(self, seen: Seen) -> None:
        """Take in the next step."""
        ...

    def reading(self) -> tuple[float, str]:
        """Score in [0, 1] after the newest step, and its reason ("" at score 0)."""
        ...
