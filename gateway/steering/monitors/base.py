"""What every suite shares: names, weights, settings, and how six scores become a reading."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal, Protocol

from gateway.steering.monitors.robust_settings import RobustSettings
from gateway.steering.steps import Step

MONITORS = ("streak", "call_count", "edit_revert", "test_repeat", "diversity", "hedge")
"""The six monitors in their order. Source: reference section 4.7."""

FAILURE_TYPES: Mapping[str, str] = MappingProxyType(
    {
        "streak": "loop",
        "call_count": "budget",
        "edit_revert": "edit_revert",
        "test_repeat": "test_repeat",
        "diversity": "diversity",
        "hedge": "hedge",
    }
)
"""Label of the failure each monitor stands for. Source: reference section 18."""


def _weights(*values: float) -> Mapping[str, float]:
    return MappingProxyType(dict(zip(MONITORS, values, strict=True)))


PROFILES: Mapping[str, Mapping[str, float]] = MappingProxyType(
    {
        "coding": _weights(0.35, 0.15, 0.15, 0.15, 0.10, 0.10),
        "pr_review": _weights(0.45, 0.15, 0.0, 0.0, 0.20, 0.20),
        "qa": _weights(0.30, 0.05, 0.05, 0.10, 0.15, 0.35),
    }
)
"""Built-in weights per kind of task, in the order of MONITORS.

Source: reference section 4.8.
"""
DEFAULT_PROFILE = "coding"

COMPOSITE_DIGITS = 4
SuiteName = Literal["reference", "robust"]
SUITE_NAMES: tuple[str, ...] = ("reference", "robust")


@dataclass(frozen=True, slots=True, kw_only=True)
class MonitorSettings:
    """Which monitors run, how they are weighted, and when one fires.

    `weights` override single weights of the profile; `profiles` are own ones, each may leave names
    out (they keep the default weight). Weights outside [0, 1] are moved to the nearer end.
    `monitors` lists the ones that run, None = all six. A monitor fires at a score of at least
    `fire_threshold`, in (0, 1]. The other fields set the monitors of suite `reference`:
    `streak_cap` calls in a row, `call_budget` calls, and the window and minimum of calls of
    `diversity` score 1; `robust` sets those of suite `robust`.

    Raises:
        ValueError: unknown suite, profile or monitor name, a profile named like a built-in one, a
            weight that is no number, a threshold or count out of range.
    Source: reference sections 4.1-4.8.
    """

    suite: SuiteName = "robust"
    profile: str = DEFAULT_PROFILE
    weights: Mapping[str, float] = field(default_factory=dict)
    profiles: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    monitors: tuple[str, ...] | None = None
    fire_threshold: float = 0.6
    streak_cap: int = 5
    call_budget: int = 20
    diversity_window: int = 5
    diversity_min_total: int = 8
    robust: RobustSettings = field(default_factory=RobustSettings)

    def __post_init__(self) -> None:
        if self.suite not in SUITE_NAMES:
            raise ValueError(f"suite: {self.suite!r} is none of {', '.join(SUITE_NAMES)}")
        _refuse_bad_weights("weights", self.weights)
        for name, weights in self.profiles.items():
            if name in PROFILES:
                raise ValueError(f"profiles.{name}: a built-in profile cannot be changed")
            _refuse_bad_weights(f"profiles.{name}", weights)
        if self.profile not in PROFILES and self.profile not in self.profiles:
            known = ", ".join([*PROFILES, *self.profiles])
            raise ValueError(f"profile: {self.profile!r} is none of {known}")
        _refuse_unknown("monitors", self.monitors or ())
        if not _is_number(self.fire_threshold) or not 0.0 < self.fire_threshold <= 1.0:
            raise ValueError(
                f"fire_threshold: expected a number in (0, 1], got {self.fire_threshold!r}"
            )
        for name in ("streak_cap", "call_budget", "diversity_window", "diversity_min_total"):
            _refuse_below_one(name, getattr(self, name))

    @property
    def active(self) -> tuple[str, ...]:
        """The monitors that run, in the order of MONITORS."""
        allowed = self.monitors
        return MONITORS if allowed is None else tuple(n for n in MONITORS if n in allowed)

    def resolved_weights(self) -> dict[str, float]:
        """Weight of each monitor in [0, 1]: defaults, then the profile, then the overrides."""
        chosen = {**PROFILES, **self.profiles}[self.profile]
        merged = {**PROFILES[DEFAULT_PROFILE], **chosen, **self.weights}
        return {name: min(max(float(merged[name]), 0.0), 1.0) for name in MONITORS}


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and not math.isnan(value)


def _refuse_unknown(key: str, names: tuple[str, ...] | Mapping[str, float]) -> None:
    for name in names:
        if name not in MONITORS:
            raise ValueError(f"{key}: {name!r} is none of {', '.join(MONITORS)}")


def _refuse_bad_weights(key: str, weights: Mapping[str, float]) -> None:
    _refuse_unknown(key, weights)
    for name, weight in weights.items():
        if not _is_number(weight):
            raise ValueError(f"{key}.{name}: expected a number, got {weight!r}")


def _refuse_below_one(key: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{key}: expected a whole number of at least 1, got {value!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Readings:
    """What the monitors say about a run up to its newest step.

    `scores`: one per active monitor, in [0, 1], 1 is worst; `composite`: their weighted sum,
    rounded to 4 decimals; `fired`: those at or above the threshold; `failure_type`: the label of
    the fired one with the largest weighted score; `evidence`: a short reason per score above 0.
    """

    scores: dict[str, float]
    composite: float = 0.0
    fired: tuple[str, ...] = ()
    failure_type: str | None = None
    evidence: dict[str, str] = field(default_factory=dict)


class Suite(Protocol):
    """Monitors over one run; the cost of a push and of a reading does not grow with the run."""

    def push(self, step: Step) -> None:
        """Take in the next step of the run."""
        ...

    def readings(self) -> Readings:
        """What the monitors say about all steps pushed so far."""
        ...


def combine(
    scores: Mapping[str, float],
    evidence: Mapping[str, str],
    *,
    weights: Mapping[str, float],
    fire_threshold: float,
) -> Readings:
    """The readings that follow from single scores; `scores` is in the order of MONITORS.

    Among fired monitors of equal weighted score the first names the failure.
    """
    composite = 0.0
    worst, failure_type = -1.0, None
    fired = []
    for name, score in scores.items():
        weighted = weights[name] * score
        composite += weighted
        if score >= fire_threshold:
            fired.append(name)
            if weighted > worst:
                worst, failure_type = weighted, FAILURE_TYPES[name]
    return Readings(
        scores=dict(scores),
        composite=round(composite, COMPOSITE_DIGITS),
        fired=tuple(fired),
        failure_type=failure_type,
        evidence={name: text for name, text in evidence.items() if text},
    )
