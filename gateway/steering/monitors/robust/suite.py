"""The robust suite over one run."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from gateway.steering.features import describe
from gateway.steering.monitors.base import MonitorSettings, Readings, combine
from gateway.steering.monitors.robust.call_count import CallCount
from gateway.steering.monitors.robust.diversity import Diversity
from gateway.steering.monitors.robust.edit_revert import EditRevert
from gateway.steering.monitors.robust.hedge import Hedge
from gateway.steering.monitors.robust.seen import RobustMonitor, Seen
from gateway.steering.monitors.robust.streak import Streak
from gateway.steering.monitors.robust.test_repeat import TestRepeat
from gateway.steering.monitors.robust_settings import RobustSettings
from gateway.steering.repeats import CallMemory
from gateway.steering.steps import Step

REGISTRY: Mapping[str, Callable[[RobustSettings], RobustMonitor]] = {
    "streak": Streak,
    "call_count": CallCount,
    "edit_revert": EditRevert,
    "test_repeat": TestRepeat,
    "diversity": Diversity,
    "hedge": Hedge,
}


class RobustSuite:
    """The active robust monitors over one run; cost per step flat in its length."""

    __slots__ = ("_fire_threshold", "_memory", "_monitors", "_weights")

    def __init__(self, settings: MonitorSettings) -> None:
        own = getattr(settings, "robust", None) or RobustSettings()
        self._memory = CallMemory()
        self._monitors = {name: REGISTRY[name](own) for name in settings.active}
        self._weights = settings.resolved_weights()
        self._fire_threshold = settings.fire_threshold

    def push(self, step: Step) -> None:
        """Take in the next step of the run."""
        facts = describe(step)
        seen = Seen(
            facts=facts,
            actions=tuple([(action, self._memory.observe(action)) for action in facts.actions]),
        )
        for monitor in self._monitors.values():
            monitor.push(seen)

    def readings(self) -> Readings:
        """What the monitors say about all steps pushed so far."""
        read = {name: monitor.reading() for name, monitor in self._monitors.items()}
        return combine(
            {name: score for name, (score, _) in read.items()},
            {name: reason for name, (_, reason) in read.items()},
            weights=self._weights,
            fire_threshold=self._fire_threshold,
        )
