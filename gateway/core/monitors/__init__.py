"""Health monitors: what a run looks like so far, as one score per way of going wrong.

`table` has one row per monitor, `settings` what an operator may set, `suite` how scores become
readings; `reference` and `robust` hold the monitors of the two suites, each imported when used."""

from collections.abc import Iterable
from typing import Any

from gateway.core.monitors.settings import MonitorSettings, RobustSettings
from gateway.core.monitors.suite import Alarm, Readings, Suite, combine
from gateway.core.monitors.table import (
    ALARMING,
    FAILURE_LABELS,
    FAILURE_TYPES,
    MONITORS,
    PROFILES,
    SUITE_NAMES,
    SUITES,
    SuiteName,
)
from gateway.core.plugins import load_class
from gateway.steering.transcript.steps import Step, steps_from_records
from gateway.values import Fields

# fmt: off
__all__ = [
    "ALARMING", "FAILURE_LABELS", "FAILURE_TYPES", "MONITORS", "PROFILES", "SUITE_NAMES", "Alarm",
    "MonitorSettings", "Readings", "RobustSettings", "Suite", "SuiteName", "combine", "evaluate",
    "make_suite", "steps_from_records",
]
# fmt: on


def make_suite(settings: MonitorSettings) -> Suite[Any]:
    """A new suite for one run; imports the modules of the suite that `settings` names."""
    suite: Suite[Any] = load_class(__name__, SUITES[settings.suite])(settings)
    return suite


def evaluate(steps: Iterable[Step | Fields], settings: MonitorSettings | None = None) -> Readings:
    """The readings over `steps`, which may be records for `steps_from_records`; never raises."""
    suite = make_suite(settings or MonitorSettings())
    for step in steps:
        for each in (step,) if isinstance(step, Step) else steps_from_records([step]):
            suite.push(each)
    return suite.readings()
