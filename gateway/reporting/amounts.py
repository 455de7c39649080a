"""Amounts a run spends (dollars, tokens, steps): typical values, and the ratio of two arms."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gateway.reporting.rates import Z

if TYPE_CHECKING:
    from gateway.reporting.resampling import Floats

# numpy is imported where it is needed, so that commands without it start sooner.

_FEWEST_UNITS = 5  # with fewer units, resampling them does not show their spread


@dataclass(frozen=True, slots=True, kw_only=True)
class Amount:
    """What the runs of one arm spent: how many are known, their winsorised mean, their median."""

    runs: int
    mean: float
    median: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """One arm's amount over another's, with its 95 % interval; below 1 is less."""

    estimate: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AmountRatio:
    """The ratios of two arms' winsorised means and medians; None where no ratio can be computed."""

    mean: Ratio | None
    median: Ratio | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """(unit, amount) per run of one arm, of the runs whose amount is known."""

    runs: Sequence[tuple[str, float]]


def amount_of(spent: Spent) -> Amount | None:
    """The mean and median of an arm; None when no run's amount is known."""
    if not spent.runs:
        return None
    from gateway.reporting.resampling import typical

    mean, median = typical([value for _, value in spent.runs])
    return Amount(runs=len(spent.runs), mean=mean, median=median)


def amount_ratio(treated: Spent, baseline: Spent, *, seed: str) -> AmountRatio | None:
    """Treated over baseline, with bootstrap intervals; None without runs in both.

    Units are resampled, not runs, because the runs of one unit are not independent. Each draw and
    arm has its own limits for winsorising, so that an effect of x % shows as x %. The interval is
    the estimate's logarithm and its standard error over the draws, with Student's quantile. The
    same runs and `seed` give the same report.
    """
    if not treated.runs or not baseline.runs:
        return None
    first, second = amount_of(treated), amount_of(baseline)
    assert first is not None
    assert second is not None
    units = min(len({unit for unit, _ in spent.runs}) for spent in (treated, baseline))
    if units < _FEWEST_UNITS:
        return AmountRatio(mean=None, median=None)
    from gateway.reporting.resampling import generator_of, resampled, resamples_for

    generator = generator_of(hashlib.sha256(seed.encode()).digest())
    draws = resamples_for(max(len(treated.runs), len(baseline.runs)))
    above = resampled(treated.runs, generator, draws)
    below = resampled(baseline.runs, generator, draws)
    reach = _student(2 * (units - 1))
    return AmountRatio(
        mean=_ratio(first.mean, second.mean, above[0], below[0], reach),
        median=_ratio(first.median, second.median, above[1], below[1], reach),
    )


def _ratio(first: float, second: float, above: Floats, below: Floats, reach: float) -> Ratio | None:
    if min(first, second, above.min(), below.min()) <= 0:
        return None
    from gateway.reporting.resampling import log_error

    estimate = first / second
    factor = math.exp(reach * log_error(above, below))
    return Ratio(estimate=estimate, low=estimate / factor, high=estimate * factor)


def _student(degrees: int) -> float:
    """Student's 97.5 % quantile, by the first terms of its expansion; within 0.01 from 8 degrees.

    Source: Abramowitz and Stegun, 26.7.5.
    """
    z, n = Z, float(degrees)
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    return z + first / n + second / n**2
