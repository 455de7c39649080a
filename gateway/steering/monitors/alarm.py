"""An alarm: one or more monitors fire. What it does to the difficulty, and how severe it is."""

from __future__ import annotations

from collections.abc import Sequence

ALARM_DIFFICULTY = 0.65
"""Least difficulty of a step on which a monitor fires, in [0, 1]. Source: design section 7."""
SEVERITIES = (1, 2, 4)
"""Steps in a row with an alarm from which its severity is 1, 2, 3."""


def with_alarm(score: float, fired: Sequence[str]) -> float:
    """The difficulty of a step on which these monitors fired."""
    return max(score, ALARM_DIFFICULTY) if fired else score


def severity_of(alarmed_steps: int) -> int:
    """Severity, 0 to 3, of an alarm that has lasted for so many steps in a row."""
    return sum([1 for least in SEVERITIES if alarmed_steps >= least]) if alarmed_steps else 0
