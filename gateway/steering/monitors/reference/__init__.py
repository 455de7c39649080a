"""Suite `reference`: the six monitors with the formulas of the reference, exactly."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from gateway.steering.monitors.base import MonitorSettings, Readings, combine
from gateway.steering.monitors.reference.call import Monitor, calls_of
from gateway.steering.monitors.reference.call_count import CallCount
from gateway.steering.monitors.reference.diversity import Diversity
from gateway.steering.monitors.reference.edit_revert import EditRevert
from gateway.steering.monitors.reference.hedge import Hedge
from gateway.steering.monitors.reference.streak import Streak
from gateway.steering.monitors.reference.test_repeat import TestRepeat
from gateway.steering.steps import Step

REGISTRY: Mapping[str, Callable[[MonitorSettings], Monitor]] = {
    "streak": Streak,
    "call_count": CallCount,
    "edit_revert": EditRevert,
    "test_repeat": TestRepeat,
    "diversity": Diversity,
    "hedge": Hedge,
}


class ReferenceSuite:
    """The active reference monitors over one run."""

    __slots__ = ("_fire_threshold", "_monitors", "_weights")

    def __init__(self, settings: MonitorSettings) -> None:
        self._monitors = {name: REGISTRY[name](settings) for name in settings.active}
        self._weights = settings.resolved_weights()
        self._fire_threshold = settings.fire_threshold

    def push(self, step: Step) -> None:
        """Take in the next step of the run."""
        for call in calls_of(step):
            for monitor in self._monitors.values():
                monitor.push(call)

    def readings(self) -> Readings:
        """What the monitors say about all steps pushed so far."""
        read = {name: monitor.reading() for name, monitor in self._monitors.items()}
        return combine(
            {name: score for name, (score, _) in read.items()},
            {name: reason for name, (_, reason) in read.items()},
            weights=self._weights,
            fire_threshold=self._fire_threshold,
        )
