"""The robust suite over one run: its monitors see the facts of one step at a time."""

from __future__ import annotations

from gateway.steering.evidence.features import describe
from gateway.steering.evidence.repeats import CallMemory
from gateway.steering.monitors.robust.observed import ObservedStep, StepMonitor
from gateway.steering.monitors.settings import MonitorSettings
from gateway.steering.monitors.suite import MonitorSuite
from gateway.steering.transcript.steps import Step


class RobustSuite(MonitorSuite[StepMonitor]):
    """The active robust monitors over one run; cost per step flat in its length."""

    __slots__ = ("_memory",)

    def __init__(self, settings: MonitorSettings) -> None:
        super().__init__(settings, settings.robust)
        self._memory = CallMemory()

    def push(self, step: Step) -> None:
        """Observe the next step of the run."""
        facts = describe(step)
        observed = ObservedStep(
            facts=facts,
            actions=tuple([(action, self._memory.observe(action)) for action in facts.actions]),
        )
        for monitor in self.monitors.values():
            monitor.push(observed)
