"""Base of the robust monitors."""

from __future__ import annotations

from typing import Protocol

from gateway.steering.evidence.observation import ObservedStep

__all__ = ["ObservedStep", "StepMonitor"]


class StepMonitor(Protocol):
    """One way of going wrong, followed over a run at constant cost per step."""

    def push(self, step: ObservedStep) -> None:
        """Observe the next step."""
        ...

    def reading(self) -> tuple[float, str]:
        """Score in [0, 1] after the newest step, and its reason ("" at score 0)."""
        ...
