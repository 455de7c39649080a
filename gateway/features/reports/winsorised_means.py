"""Amounts a run spends (dollars, tokens, steps): typical values, and the ratio of two arms."""

from collections import defaultdict
from collections.abc import Sequence
from math import ceil, exp, floor, fsum, hypot, log, sqrt
from statistics import median
from typing import NamedTuple

from gateway.reporting.statistics import Z
from gateway.values import frozen

# (unit, amount) per run of one arm, of the runs whose amount is known.
Spent = Sequence[tuple[str, float]]
# Share of the runs at either end that count as the nearest run inside: a few runaway runs dominate
# a plain mean.
WINSOR_SHARE = 0.05

FEWEST_UNITS = 5  # fewer do not show how much runs differ
_SLACK = 1e-9  # of a mark among whole numbers


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


class _Figure(NamedTuple):
    """A figure of one arm with its 95 % interval."""

    value: float  # of the figure
    low: float  # lower end of the interval
    high: float  # upper end of it


def amount_of(spent: Spent) -> Amount | None:
    """The mean and median of an arm; None when no run's amount is known."""
    if not spent:
        return None
    middle = median([value for _, value in spent])
    return Amount(runs=len(spent), mean=_mean(spent).value, median=middle)


def amount_ratio(treated: Spent, baseline: Spent) -> AmountRatio | None:
    """Treated over baseline; None without runs in both. Units vary and not runs, because the runs
    of one unit are not independent. Each arm has its own limits for winsorising, so that an effect
    of x % shows as x %."""
    if not treated or not baseline:
        return None
    if reach(treated) is None or reach(baseline) is None:
        return AmountRatio(mean=None, median=None)
    return AmountRatio(
        mean=_ratio(_mean(treated), _mean(baseline)),
        median=_ratio(_median(treated), _median(baseline)),
    )


def _ratio(first: _Figure, second: _Figure) -> Ratio | None:
    """The ratio, whose interval joins those of both logarithms."""
    if min(first.low, second.low) <= 0:
        return None
    estimate = first.value / second.value
    halves = [log(each.high / each.low) / 2 for each in (first, second)]
    factor = exp(hypot(*halves))
    return Ratio(estimate=estimate, low=estimate / factor, high=estimate * factor)


def _mean(spent: Spent) -> _Figure:
    """The winsorised mean. Its upper limit varies with the number of runs above it, and all runs
    that count as the limit vary with it; at the lower one amounts hardly differ."""
    least = _quantile(spent, WINSOR_SHARE).value
    most = _quantile(spent, 1 - WINSOR_SHARE)
    runs = len(spent)
    kept = [(unit, min(max(value, least), most.value)) for unit, value in spent]
    mean = total(kept) / runs
    ranks = sum(most.low < value <= most.high for _, value in spent)
    step = WINSOR_SHARE * runs * (most.high - most.low) / max(ranks, 1)
    moved = [(unit, value + step * (value == most.value)) for unit, value in kept]
    factor = exp((reach(moved) or 0.0) / runs / (mean or 1.0))
    return _Figure(mean, mean / factor, mean * factor)


def _median(spent: Spent) -> _Figure:
    middle = median([value for _, value in spent])
    return _quantile(spent, 0.5)._replace(value=middle)


def _quantile(spent: Spent, share: float) -> _Figure:
    """The least amount that this share of the runs do not exceed. The interval is that of the ranks
    between which it lies, as the number of runs above it varies."""
    values = sorted([value for _, value in spent])
    runs = len(values)
    value = values[ceil(share * runs - _SLACK) - 1]
    half = reach([(unit, own > value) for unit, own in spent]) or 0.0
    first = max(0, floor(share * runs - half))
    last = min(runs, ceil(share * runs + half)) - 1
    return _Figure(value, values[first], values[last])


def total(amounts: Spent) -> float:
    """The sum of the amounts."""
    return fsum(amount for _, amount in amounts)


def reach(amounts: Spent) -> float | None:
    """Returns half the 95 % interval of a sum over runs; None for too few units. The runs of one
    unit vary together. So each unit counts as one: with n units and d the sum of a unit's
    deviations from the mean, the variance is n / (n - 1) times the sum of d squared."""
    mean = total(amounts) / (len(amounts) or 1)
    units: dict[str, float] = defaultdict(float)
    for unit, amount in amounts:
        units[unit] += amount - mean
    size = len(units)
    if size < FEWEST_UNITS:
        return None
    variance = size / (size - 1) * fsum(rest**2 for rest in units.values())
    return _student(size - 1.0) * sqrt(variance)


def _student(n: float) -> float:
    """Student's 97.5 % quantile for `n` degrees, by the first terms of its expansion; within 0.01
    from 8 degrees. Source: Abramowitz and Stegun, 26.7.5."""
    return Z + (Z**3 + Z) / 4 / n + (5 * Z**5 + 16 * Z**3 + 3 * Z) / 96 / n**2
