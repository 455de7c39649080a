"""Amounts a run spends (dollars, tokens, steps): typical values, and the ratio of two arms."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gateway.reporting.rates import Z

Floats = NDArray[np.float64]

WINSOR_SHARE = 0.05
"""Share of the runs at either end that count as the last one inside: a few runaway runs decide a
plain mean of costs."""

RESAMPLES = 500
"""Enough to know a standard error to about 3 %."""

_MOST_CELLS = 500_000  # numbers held at once while resampling: 4 MB an array
_FEWEST_UNITS = 5  # below, the units drawn again and again are too few to tell their spread


@dataclass(frozen=True, slots=True, kw_only=True)
class Amount:
    """What the runs of one arm spent: how many are known, and their winsorised mean and median."""

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
    """The ratios of two arms' winsorised means and of their medians; None: cannot be told."""

    mean: Ratio | None
    median: Ratio | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """(unit, amount) per run of one arm, of the runs whose amount is known."""

    runs: Sequence[tuple[str, float]]


def amount_of(spent: Spent) -> Amount | None:
    """The arm's typical values, None when no run's amount is known."""
    if not spent.runs:
        return None
    values, _ = _arrays(spent)
    means, medians = _typical(values, np.ones((1, len(values))))
    return Amount(runs=len(values), mean=float(means[0]), median=float(medians[0]))


def ratio_of(treated: Spent, baseline: Spent, *, seed: str) -> AmountRatio | None:
    """Treated over baseline, with bootstrap intervals; None without runs in both.

    Units are drawn, not runs, because the runs of one unit are not independent. The limits of
    winsorising are found anew in each draw and arm, so that an effect of x % shows as x %. The
    interval is the estimate's logarithm and its standard error over the draws, with Student's
    quantile. `seed` makes the report of the same runs the same report.
    """
    if not treated.runs or not baseline.runs:
        return None
    first, second = amount_of(treated), amount_of(baseline)
    assert first is not None
    assert second is not None
    units = min(len({unit for unit, _ in spent.runs}) for spent in (treated, baseline))
    if units < _FEWEST_UNITS:
        return AmountRatio(mean=None, median=None)
    generator = np.random.default_rng(list(hashlib.sha256(seed.encode()).digest()))
    above, below = _resampled(treated, generator), _resampled(baseline, generator)
    reach = _student(2 * (units - 1))
    return AmountRatio(
        mean=_ratio(first.mean, second.mean, above[0], below[0], reach),
        median=_ratio(first.median, second.median, above[1], below[1], reach),
    )


def _ratio(first: float, second: float, above: Floats, below: Floats, reach: float) -> Ratio | None:
    if min(first, second, above.min(), below.min()) <= 0:
        return None
    error = float(np.std(np.log(above / below), ddof=1))
    estimate = first / second
    factor = math.exp(reach * error)
    return Ratio(estimate=estimate, low=estimate / factor, high=estimate * factor)


def _student(degrees: int) -> float:
    """Student's 97.5 % quantile, by the first terms of its expansion; within 0.01 from 8 degrees.

    Source: Abramowitz and Stegun, 26.7.5.
    """
    z, n = Z, float(degrees)
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    return z + first / n + second / n**2


def _resampled(spent: Spent, generator: np.random.Generator) -> tuple[Floats, Floats]:
    """Winsorised means and medians of RESAMPLES draws of the arm's units."""
    values, units = _arrays(spent)
    count = int(units.max()) + 1
    rows = max(1, _MOST_CELLS // len(values))
    parts = []
    for start in range(0, RESAMPLES, rows):
        draws = min(rows, RESAMPLES - start)
        parts.append(_typical(values, _drawn(count, draws, generator)[:, units]))
    means, medians = zip(*parts, strict=True)
    return np.concatenate(means), np.concatenate(medians)


def _drawn(count: int, draws: int, generator: np.random.Generator) -> Floats:
    """How often each of `count` units comes up when as many are drawn; a row a draw."""
    picked = generator.integers(0, count, (draws, count)) + count * np.arange(draws)[:, None]
    times = np.bincount(picked.ravel(), minlength=draws * count)
    return times.reshape(draws, count).astype(np.float64)


def _arrays(spent: Spent) -> tuple[Floats, NDArray[np.intp]]:
    """The values in ascending order, and for each the number of its unit."""
    values = np.array([value for _, value in spent.runs], dtype=np.float64)
    _, units = np.unique(np.array([unit for unit, _ in spent.runs]), return_inverse=True)
    order = np.argsort(values, kind="stable")
    return values[order], units[order]


def _typical(values: Floats, weights: Floats) -> tuple[Floats, Floats]:
    """Winsorised mean and median of ascending values, for each row of weights."""
    passed = np.cumsum(weights, axis=1)
    total = passed[:, -1:]
    low = values[_first_at(passed, WINSOR_SHARE * total)]
    high = values[_first_at(passed, (1 - WINSOR_SHARE) * total)]
    kept = np.clip(values, low[:, None], high[:, None])
    means = (kept * weights).sum(axis=1) / total[:, 0]
    half = total / 2
    # With an even number of runs the median lies between two.
    lower = values[_first_at(passed, half)]
    upper = values[_first_at(passed, half, beyond=True)]
    return means, (lower + upper) / 2


def _first_at(passed: Floats, mark: Floats, *, beyond: bool = False) -> NDArray[np.intp]:
    """Index of the first value at (or beyond) a weight of `mark`, for each row."""
    reached = passed > mark + 1e-9 if beyond else passed >= mark - 1e-9
    first: NDArray[np.intp] = np.argmax(reached, axis=1)
    return first
