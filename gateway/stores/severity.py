"""The severity of a step and of a run.

One scale of severity for steps and runs, which every page and every alert uses:

    no alarm    no monitor fires, the composite is under 0.35, the state is not below
    at risk     a monitor fires, the composite reaches 0.35, or the state is SLOW
    in trouble  the composite reaches 0.6, the state is SKIP, or monitors have fired at
                STUCK_STEPS steps: in a row for a step, in all for a whole run

Stored rows have a code for each (`Severity`); what leaves the gateway has the word. Fields of the
API that had the code before stay beside the word, and filters take both.

The composite alone is not enough: it is a weighted sum, and one monitor at its highest, which is
what a loop looks like, remains under 0.6."""

from collections.abc import Mapping, Sequence
from typing import Literal, get_args

from gateway.stores.records import StepRow

# Source: docs/names.md, the dashboard: a run whose peak stays under the first line is clean.
WARN_COMPOSITE = 0.35
DANGER_COMPOSITE = 0.6

Severity = Literal["low", "warn", "danger"]
SeverityWord = Literal["no-alarm", "at-risk", "in-trouble"]
# The one table of severities, from the lowest: the words by the codes. The lowest is no praise:
# runs fail without an alarm, too.
SEVERITY_WORDS: Mapping[str, SeverityWord] = {
    "low": "no-alarm",
    "warn": "at-risk",
    "danger": "in-trouble",
}
SEVERITIES: tuple[Severity, ...] = get_args(Severity)

# A run of recorded agents that fires at five steps in a row rarely frees itself. Severity 3 begins
# at four steps.
STUCK_STEPS = 5
# The monitor that fires because a run is long; a long run need not be stuck.
LENGTH_MONITOR = "call_count"
_STATES = {"SLOW": "warn", "SKIP": "danger"}


def by_word(counts: Mapping[str, int]) -> dict[str, int]:
    """Counts by severity, under its words."""
    return {SEVERITY_WORDS[code]: count for code, count in counts.items()}


def severity_of(composite: float) -> Severity:
    """The severity by the composite alone."""
    if composite < WARN_COMPOSITE:
        return "low"
    if composite < DANGER_COMPOSITE:
        return "warn"
    return "danger"


def worst(*found: str) -> Severity:
    """The most severe of them; low for none."""
    return max(found, key=SEVERITIES.index, default="low")  # type: ignore[arg-type]


def step_severity(step: StepRow, stuck_steps: int = 0) -> Severity:
    """The severity at one step; `stuck_steps`: for how many steps in a row monitors have fired."""
    by_fires = _severity_of_fires(bool(step.fired), stuck_steps)
    return worst(severity_of(step.composite or 0.0), by_fires, _STATES.get(step.state, "low"))


def _severity_of_fires(fired: bool, times: int) -> Severity:
    if times >= STUCK_STEPS:
        return "danger"
    if fired:
        return "warn"
    return "low"


def run_severity(peak: float, fired: Mapping[str, int], states: Mapping[str, int]) -> Severity:
    """The worst that a run has come to, by its highest composite, its firings by monitor and its
    steps by state."""
    fires = max((n for name, n in fired.items() if name != LENGTH_MONITOR), default=0)
    by_fires = _severity_of_fires(bool(fired), fires)
    by_state = (_STATES.get(name, "low") for name, times in states.items() if times)
    return worst(severity_of(peak), by_fires, *by_state)


def streaks(steps: Sequence[StepRow]) -> list[int]:
    """Per step, the steps in a row up to it at which a monitor other than that of the run's
    length fired."""
    found = []
    length = 0
    for step in steps:
        if any(name != LENGTH_MONITOR for name in step.fired):
            length = length + 1
        else:
            length = 0
        found.append(length)
    return found
