"""Amounts a run spends (dollars, tokens, steps): typical values, and the ratio of two arms."""

import hashlib
import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gateway.reporting.evidence import Z
from gateway.values import frozen

Floats = NDArray[np.float64]
Counts = NDArray[np.intp]
# (unit, amount) per run of one arm, of the runs whose amount is known.
Spent = Sequence[tuple[str, float]]
# Share of the runs at either end that count as the nearest run inside: a few runaway runs dominate
# a plain mean.
WINSOR_SHARE = 0.05

# The most estimate a standard error within about 3 % (one over the root of twice as many), the
# fewest within 5 %: for thousands of runs, whose intervals are narrow and whose draws long.
_RESAMPLES = (200, 500)
_SLACK = 1e-9  # of a mark among whole numbers
_MOST_DRAWN = 500_000  # runs in all draws together, unless that is fewer than the fewest resamples
# Numbers held at once while resampling. An array of 128 kB comes from the heap again and again;
# larger ones are asked of the system and given back each time, which took longer than the sums.
_MOST_CELLS = 16_000
_FEWEST_UNITS = 5  # with fewer units, resampling them does not show their spread


@frozen
class Amount:
    """Spending of one arm's runs."""

    runs: int  # those whose amount is known
    mean: float  # winsorised: extreme runs count as less extreme ones
    median: float  # of the known amounts


@frozen
class Ratio:
    """One arm's amount over another's; below 1 is less."""

    estimate: float  # of the ratio
    low: float  # lower end of its 95 % interval
    high: float  # upper end of it


@frozen
class AmountRatio:
    """The amounts of two arms, compared. A ratio is None where it cannot be computed."""

    mean: Ratio | None  # of the winsorised means
    median: Ratio | None  # of the medians


def amount_of(spent: Spent) -> Amount | None:
    """The mean and median of an arm; None when no run's amount is known."""
    if not spent:
        return None
    values = np.sort(np.array([value for _, value in spent], dtype=np.float64))
    means, medians = _typical(values, np.ones((1, len(values)), dtype=np.intp))
    return Amount(runs=len(spent), mean=float(means[0]), median=float(medians[0]))


def amount_ratio(treated: Spent, baseline: Spent, *, seed: str) -> AmountRatio | None:
    """Treated over baseline, with bootstrap intervals; None without runs in both. Units are
    resampled, because the runs of one unit are not independent. Each draw and arm has its own
    limits for winsorising, so that an effect of x % shows as x %. The interval is the estimate's
    logarithm and its standard error over the draws, with Student's quantile. `seed` makes it
    reproducible."""
    first = amount_of(treated)
    second = amount_of(baseline)
    if first is None or second is None:
        return None
    units = min(len({unit for unit, _ in spent}) for spent in (treated, baseline))
    if units < _FEWEST_UNITS:
        return AmountRatio(mean=None, median=None)
    generator = np.random.default_rng(list(hashlib.sha256(seed.encode()).digest()))
    fewest, most = _RESAMPLES
    draws = min(most, max(fewest, _MOST_DRAWN // max(len(treated), len(baseline))))
    above = _resampled(treated, generator, draws)
    below = _resampled(baseline, generator, draws)
    reach = student(2.0 * (units - 1))
    return AmountRatio(
        mean=_ratio(first.mean, second.mean, above[0], below=below[0], reach=reach),
        median=_ratio(first.median, second.median, above[1], below=below[1], reach=reach),
    )


def _ratio(first: float, second: float, above: Floats, below: Floats, reach: float) -> Ratio | None:
    if min(first, second, above.min(), below.min()) <= 0:
        return None
    estimate = first / second
    factor = math.exp(reach * float(np.std(np.log(above / below), ddof=1)))
    return Ratio(estimate=estimate, low=estimate / factor, high=estimate * factor)


def student(n: float) -> float:
    """Student's 97.5 % quantile for `n` degrees, by the first terms of its expansion; within 0.01
    from 8 degrees. Source: Abramowitz and Stegun, 26.7.5."""
    return Z + (Z**3 + Z) / 4 / n + (5 * Z**5 + 16 * Z**3 + 3 * Z) / 96 / n**2


def _resampled(
    runs: Spent, generator: np.random.Generator, resamples: int
) -> tuple[Floats, Floats]:
    """Winsorised means and medians of `resamples` draws of the units."""
    values, units = _arrays(runs)
    count = int(units.max()) + 1
    rows = max(1, _MOST_CELLS // len(values))
    parts = []
    for start in range(0, resamples, rows):
        drawn = _drawn(count, min(rows, resamples - start), generator)
        parts.append(_typical(values, drawn[:, units]))
    means, medians = zip(*parts, strict=True)
    return np.concatenate(means), np.concatenate(medians)


def _drawn(count: int, draws: int, generator: np.random.Generator) -> Counts:
    """Draws resamples of `count` units; returns, one row per draw, how often each unit is in it."""
    picked = generator.integers(0, count, (draws, count), dtype=np.uint32)
    picked += (count * np.arange(draws, dtype=np.uint32))[:, None]
    return np.bincount(picked.ravel(), minlength=draws * count).reshape(draws, count)


def _arrays(runs: Spent) -> tuple[Floats, Counts]:
    """The values in ascending order, and for each the number of its unit."""
    numbers: dict[str, int] = {}
    units = np.array([numbers.setdefault(unit, len(numbers)) for unit, _ in runs])
    values = np.array([value for _, value in runs], dtype=np.float64)
    order = np.argsort(values, kind="stable")
    return values[order], units[order]


def _typical(values: Floats, weights: Counts) -> tuple[Floats, Floats]:
    """Winsorised mean and median of ascending values, for each row of weights."""
    passed = np.cumsum(weights, axis=1)
    total = passed[:, -1]
    # With an even number of runs the median lies between two of them: at and beyond the middle.
    marks = (WINSOR_SHARE * total, (1 - WINSOR_SHARE) * total, total / 2, total / 2 + 2 * _SLACK)
    low, high, lower, upper = values[_first_at(passed, np.stack(marks))]
    kept = np.clip(values, low[:, None], high[:, None])
    means = np.einsum("ij,ij->i", kept, weights) / total
    return means, (lower + upper) / 2


def _first_at(passed: Counts, marks: Floats) -> Counts:
    """Returns, for each row of `passed`, the index of the first value whose cumulated weight
    reaches the row's mark, for each of its `marks`."""
    count, width = passed.shape
    # Each row a step above the one before: one ascending array, and one search for all rows.
    steps = np.arange(count) * (passed[:, -1].max() + 1)
    ascending = (passed + steps[:, None]).ravel()
    first = np.searchsorted(ascending, marks + steps - _SLACK)
    found: Counts = first - np.arange(count) * width
    return found
