"""A comparison as the lines of a forest plot, with one scale for each kind of effect."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from gateway.reporting.amounts import Ratio
from gateway.reporting.rates import Difference
from gateway.reporting.results import Comparison

# Scales reach at least this far to either side, so that small effects look small.
_LEAST_POINTS = 0.1
_LEAST_CHANGE = 0.25
_MARGIN = 1.08


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """One line: an estimate and its 95 % interval on the scale `bounds`.

    `kind`: points (a difference of shares) or ratio. `none`: the value that means no effect.
    """

    name: str
    kind: Literal["points", "ratio"]
    estimate: float
    low: float
    high: float
    bounds: tuple[float, float]
    none: float

    @property
    def sure(self) -> bool:
        """Whether the interval excludes `none`."""
        return not self.low <= self.none <= self.high

    @property
    def good(self) -> bool | None:
        """Whether the arm is better: more success, or less of anything else; None if not sure."""
        if not self.sure:
            return None
        return (self.estimate > self.none) is (self.kind == "points")


def effects_of(comparison: Comparison) -> list[Effect]:
    """The lines of a comparison; unknown values are left out."""
    differences = [
        ("Success", comparison.success),
        ("Success, like with like", comparison.success_stratified),
    ]
    known = [(name, found) for name, found in differences if found is not None]
    ratios = list(_ratios(comparison))
    points = _reach(known, 0.0, _LEAST_POINTS)
    changes = _reach(ratios, 1.0, _LEAST_CHANGE)
    return [
        *(_effect(name, "points", found, points, 0.0) for name, found in known),
        *(_effect(name, "ratio", found, changes, 1.0) for name, found in ratios),
    ]


def _ratios(comparison: Comparison) -> list[tuple[str, Ratio]]:
    amounts = (
        ("Cost per run", comparison.cost_usd),
        ("Tokens per run", comparison.tokens),
        ("Steps per run", comparison.steps),
    )
    found = [
        (f"{name}, {kind}", ratio)
        for name, amount in amounts
        if amount is not None
        for kind, ratio in (("mean", amount.mean), ("median", amount.median))
    ]
    return [(name, ratio) for name, ratio in found if ratio is not None]


def _effect(
    name: str,
    kind: Literal["points", "ratio"],
    found: Difference | Ratio,
    bounds: tuple[float, float],
    none: float,
) -> Effect:
    return Effect(
        name=name,
        kind=kind,
        estimate=found.estimate,
        low=found.low,
        high=found.high,
        bounds=bounds,
        none=none,
    )


def _reach(
    lines: Sequence[tuple[str, Difference | Ratio]], none: float, least: float
) -> tuple[float, float]:
    """A scale around `none` that shows every interval."""
    ends = [end for _, found in lines for end in (found.low, found.high) if math.isfinite(end)]
    far = max([least, *(abs(end - none) for end in ends)]) * _MARGIN
    return none - far, none + far
