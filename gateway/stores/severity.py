"""One scale of severity for steps and runs, which every page and every alert uses.

    low     nothing is wrong: no monitor fires, the composite is under 0.35, the state is not below
    warn    at risk: a monitor fires, the composite reaches 0.35, or the state is SLOW
    danger  in trouble: the composite reaches 0.6, the state is SKIP, or monitors have fired at
            STUCK_STEPS steps: in a row for a step, in all for a whole run

The composite alone does not tell: it is a weighted sum, and one monitor at its highest, which is
what a loop looks like, stays under 0.6.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Literal

from gateway.stores.records import StepRow
from gateway.stores.totals import RunTotals, severity_of

Severity = Literal["low", "warn", "danger"]

SEVERITIES: Final[tuple[Severity, ...]] = ("low", "warn", "danger")
SEVERITY_WORDS: Final[Mapping[str, str]] = {
    "low": "no alarm",
    "warn": "at risk",
    "danger": "in trouble",
}
"""The scale in words, for people. The lowest is no praise: runs fail without an alarm, too."""

# A run of recorded agents that fires at five steps in a row rarely frees itself: docs/evidence.md
# counts what follows an alarm of severity 3, which begins at four steps.
STUCK_STEPS: Final = 5
LENGTH_MONITOR: Final = "call_count"
"""The monitor that fires because a run is long; a long run need not be stuck."""

_STATES: Final[Mapping[str, Severity]] = {"SLOW": "warn", "SKIP": "danger"}


def worst(*found: str) -> Severity:
    """The most severe of them; low for none."""
    return max(found, key=SEVERITIES.index, default="low")  # type: ignore[arg-type]


def step_severity(step: StepRow, stuck_steps: int = 0) -> Severity:
    """The severity at one step; `stuck_steps`: for how many steps in a row monitors have fired."""
    by_score = "low" if step.composite is None else severity_of(step.composite)
    by_fires = "warn" if step.fired else "low"
    stuck = "danger" if stuck_steps >= STUCK_STEPS else "low"
    return worst(by_score, by_fires, stuck, _STATES.get(step.state, "low"))


def run_severity(totals: RunTotals) -> Severity:
    """The worst that a run has come to."""
    return severity_by(totals.composite_peak, totals.fired, totals.states)


def severity_by(peak: float, fired: Mapping[str, int], states: Mapping[str, int]) -> Severity:
    """The same by a run's highest composite, its firings by monitor and its steps by state."""
    fires = max((n for name, n in fired.items() if name != LENGTH_MONITOR), default=0)
    by_fires = "danger" if fires >= STUCK_STEPS else "warn" if fired else "low"
    by_state = (_STATES.get(name, "low") for name, times in states.items() if times)
    return worst(severity_of(peak), by_fires, *by_state)


def is_stuck(step: StepRow) -> bool:
    """Whether a monitor other than that of the run's length fired."""
    return any(name != LENGTH_MONITOR for name in step.fired)


def streaks(steps: Sequence[StepRow]) -> list[int]:
    """For each step, how many steps in a row up to it are stuck."""
    found, length = [], 0
    for step in steps:
        length = length + 1 if is_stuck(step) else 0
        found.append(length)
    return found
