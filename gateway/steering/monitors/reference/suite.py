"""The reference suite over one run: its monitors see one call at a time."""

from __future__ import annotations

from gateway.steering.monitors.reference.call import CallMonitor, calls_of
from gateway.steering.monitors.settings import MonitorSettings
from gateway.steering.monitors.suite import MonitorSuite
from gateway.steering.transcript.steps import Step


class ReferenceSuite(MonitorSuite[CallMonitor]):
    """The active reference monitors over one run."""

    __slots__ = ()

    def __init__(self, settings: MonitorSettings) -> None:
        super().__init__(settings, settings)

    def push(self, step: Step) -> None:
        """Observe the next step of the run."""
        for call in calls_of(step):
            for monitor in self.monitors.values():
                monitor.push(call)
