"""Health monitors: each gives a run a score for one way of going wrong.

`table` has one row per monitor, `settings` what an operator may set, `alarms` how scores become
readings and alarms; `reference` and `robust` are the two suites, each imported when used."""

from typing import Any

from gateway.core.monitors.alarms import Alarm, Readings, Suite, combine
from gateway.core.monitors.settings import MonitorSettings, RobustSettings
from gateway.core.monitors.table import (
    ALARMING,
    FAILURE_LABELS,
    FAILURE_TYPES,
    MONITORS,
    PROFILES,
    SUITES,
    SuiteName,
)
from gateway.core.plugins import load_class


def make_suite(settings: MonitorSettings) -> Suite[Any]:
    """A new suite for one run; imports the modules of the suite that `settings` names."""
    suite: Suite[Any] = load_class(__name__, SUITES[settings.suite])(settings)
    return suite
