"""Success rates: their intervals and differences."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import hypot

from gateway.reporting.statistics import wilson
from gateway.values import frozen


@frozen
class Rate:
    """A share of successes."""

    successes: int  # of the trials
    trials: int  # judged ones
    rate: float  # in [0, 1]
    low: float  # lower end of the 95 % interval (Wilson)
    high: float  # upper end of it


@frozen
class Difference:
    """Difference of one rate from another."""

    estimate: float  # in [-1, 1]
    low: float  # lower end of the 95 % interval
    high: float  # upper end of it
    design_effect: float = 1.0  # how much runs of one unit resemble each other; 1 = all independent


@dataclass(frozen=True, kw_only=True)
class Sample:
    """Outcomes of one arm."""

    outcomes: Sequence[tuple[str, bool]]  # (unit, success) per judged run

    @cached_property
    def successes(self) -> int:
        """Number of successes."""
        return sum([success for _, success in self.outcomes])

    @property
    def trials(self) -> int:
        """Number of units."""
        return len(self.outcomes)


def rate_of(sample: Sample) -> Rate | None:
    """The success rate of a sample, None for an empty one."""
    if not sample.trials:
        return None
    effect = design_effect(sample)
    hits = sample.successes
    trials = sample.trials
    low, high = wilson(hits / effect, trials / effect)
    return Rate(successes=hits, trials=trials, rate=hits / trials, low=low, high=high)


def newcombe(treated: Sample, baseline: Sample) -> Difference | None:
    """The difference of two success rates; None when a sample is empty. Source: Newcombe,
    Statistics in Medicine 17 (1998), method 10: both Wilson intervals joined. Runs of one unit are
    not independent, so that each sample counts as its size over its design effect."""
    first = rate_of(treated)
    second = rate_of(baseline)
    if first is None or second is None:
        return None
    estimate = first.rate - second.rate
    return Difference(
        estimate=estimate,
        low=estimate - hypot(first.rate - first.low, second.high - second.rate),
        high=estimate + hypot(first.high - first.rate, second.rate - second.low),
        design_effect=max(design_effect(treated), design_effect(baseline)),
    )


def design_effect(sample: Sample) -> float:
    """The rate's variance over that of independent runs, at least 1. From the variance between
    units, as for a ratio of two sums. With one unit, or when all runs have the same outcome, it
    cannot be estimated, and the runs of a unit count as one."""
    count = len({unit for unit, _ in sample.outcomes})
    trials = sample.trials
    if count == trials:
        return 1.0
    units: dict[str, list[bool]] = defaultdict(list)
    for unit, success in sample.outcomes:
        units[unit].append(success)
    rate = sample.successes / trials
    if count < 2 or rate in (0.0, 1.0):
        return trials / count
    between = sum((sum(runs) - rate * len(runs)) ** 2 for runs in units.values())
    variance = between * count / (count - 1) / trials**2
    return max(1.0, variance / (rate * (1 - rate) / trials))
