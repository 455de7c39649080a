"""The robust suite over one run: its monitors see the observation of one step at a time."""

from __future__ import annotations

from gateway.steering.evidence.observation import ObservedStep, ReadsObservations, RunObserver
from gateway.steering.monitors.settings import MonitorSettings
from gateway.steering.monitors.suite import Suite
from gateway.steering.transcript.steps import Step


class RobustSuite(Suite[ObservedStep], ReadsObservations[None]):
    """The active robust monitors over one run."""

    __slots__ = ("_observer",)

    def __init__(self, settings: MonitorSettings) -> None:
        super().__init__(settings, settings.robust)
        self._observer = RunObserver()

    def push(self, step: Step) -> None:
        """Observe the next step of the run."""
        self.push_observed(self._observer.observe(step))

    def push_observed(self, observed: ObservedStep) -> None:
        """Take the run's observation of the next step."""
        for monitor in self.monitors.values():
            monitor.push(observed)
