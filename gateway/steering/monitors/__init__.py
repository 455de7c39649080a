"""Health monitors: what a run looks like so far, as one score per way of going wrong.

`evaluate` reads a finished list of steps; `make_suite` gives the incremental form it folds over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from gateway.steering.monitors.base import (
    FAILURE_TYPES,
    MONITORS,
    PROFILES,
    MonitorSettings,
    Readings,
    Suite,
    combine,
)
from gateway.steering.monitors.reference import ReferenceSuite
from gateway.steering.steps import Step, steps_from_records

__all__ = [
    "FAILURE_TYPES",
    "MONITORS",
    "PROFILES",
    "SUITES",
    "MonitorSettings",
    "Readings",
    "Suite",
    "combine",
    "evaluate",
    "make_suite",
]


def _robust(settings: MonitorSettings) -> Suite:
    # Loaded where it is asked for: the default suite does not need its tables.
    from gateway.steering.monitors.robust import RobustSuite

    return RobustSuite(settings)


SUITES: Mapping[str, Callable[[MonitorSettings], Suite]] = {
    "reference": ReferenceSuite,
    "robust": _robust,
}


def make_suite(settings: MonitorSettings) -> Suite:
    """A fresh suite for one run."""
    return SUITES[settings.suite](settings)


def evaluate(
    steps: Iterable[Step | Mapping[str, Any]], settings: MonitorSettings | None = None
) -> Readings:
    """What the monitors say about `steps`, which are in order and may be plain step records.

    A record is read by `steps_from_records`; no steps give scores of 0. Never raises.
    """
    suite = make_suite(settings or MonitorSettings())
    for step in steps:
        for each in (step,) if isinstance(step, Step) else steps_from_records([step]):
            suite.push(each)
    return suite.readings()
