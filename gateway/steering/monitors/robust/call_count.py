"""Call count: the budget of calls that agents of this kind succeed within."""

from __future__ import annotations

from gateway.steering.evidence.observation import ObservedStep
from gateway.steering.evidence.repeats import spends
from gateway.steering.monitors.settings import RobustSettings
from gateway.steering.scoring.calibration import shipped_calibration

AT_BUDGET = 0.6  # score when the budget is reached: the default fire threshold


class CallCount:
    """Calls against a budget; linear, so that the composite feels it before it fires.

    Without a configured budget it is the learned one: the calls within which nearly all successful
    runs of a kind ended, larger for agents that read, change or run files."""

    __slots__ = ("_budget", "_calls", "_works")

    def __init__(self, settings: RobustSettings) -> None:
        self._budget = settings.call_budget
        self._calls = 0
        self._works = False

    def push(self, step: ObservedStep) -> None:
        """Count the step's calls; waiting for a job costs nothing."""
        for action, repeat in step.actions:
            self._calls += spends(action, repeat)
            effect = action.effect
            works = effect.changes or effect.reads or action.operation.startswith("$")
            self._works = self._works or works

    def reading(self) -> tuple[float, str]:
        """0.6 at the budget, 1 at five thirds of it."""
        if not self._calls:
            return 0.0, ""
        budget = self._budget or shipped_calibration().call_budget(works=self._works)
        score = min(AT_BUDGET * self._calls / budget, 1.0)
        return score, f"{self._calls} calls of {budget} expected"
