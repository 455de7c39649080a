"""Figures with their intervals: the unit is the task, not the attempt.

Attempts at one task resemble each other, so tasks are resampled as wholes (bootstrap, 95 %, by
percentiles). Few tasks vary too little in it, which is made up for.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from bench.live.results import Done, Results
from bench.statistics import percentile

ROUNDS = 10_000
_SEED = 20_261
FEW_TASKS = 10
"""Below this the intervals are rough, and the report says so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A mean over tasks, and its interval of 95 %; None: there is none. `sure`: that 0 is outside
    the interval that holds for all comparisons of the report together."""

    value: float
    low: float | None
    high: float | None
    tasks: int
    sure: bool = False

    def within(self, least: float, most: float) -> Estimate:
        """With an interval that does not go beyond what the figure can be."""
        if self.low is None or self.high is None:
            return self
        return replace(self, low=max(least, self.low), high=min(most, self.high))


def resampled(values: Sequence[float], compared: int = 1, rounds: int = ROUNDS) -> Estimate | None:
    """The mean of one value per task; None of nothing. Equal values have no interval. `compared`:
    the number of comparisons among which this is one (Bonferroni)."""
    if not values:
        return None
    mean, n = statistics.fmean(values), len(values)
    if len(set(values)) == 1:
        return Estimate(value=mean, low=None, high=None, tasks=n)
    draw = random.Random(_SEED)
    means = sorted(sum(draw.choices(values, k=n)) / n for _ in range(rounds))

    def edges(tail: float) -> tuple[float, float]:
        low, high = (percentile(means, percent) for percent in (tail, 100 - tail))
        widen = _widening(n, tail)
        return mean + widen * (low - mean), mean + widen * (high - mean)

    low, high = edges(2.5)
    least, most = edges(2.5 / compared)
    return Estimate(value=mean, low=low, high=high, tasks=n, sure=least > 0 or most < 0)


def _widening(n: int, tail: float) -> float:
    """The factor that resampling n values lacks: of their spread, and of Student's t against the
    normal distribution (by its expansion in 1 / (n - 1))."""
    z, free = statistics.NormalDist().inv_cdf(1 - tail / 100), n - 1
    t = z + (z**3 + z) / (4 * free) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * free**2)
    return math.sqrt(n / free) * t / z


def share(values: Sequence[float]) -> Estimate | None:
    """The same for values from 0 to 1. If every task is solved, or none, the interval is the exact
    one of as many throws as there are tasks."""
    found = resampled(values)
    if found is None or found.low is not None or found.value not in (0.0, 1.0):
        return found and found.within(0, 1)
    edge = 0.025 ** (1 / found.tasks)
    low, high = (edge, 1.0) if found.value else (0.0, 1 - edge)
    return replace(found, low=low, high=high)


Read = Callable[[Done], float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """One figure of a trial, the unit of its difference, and the words for more and for less."""

    name: str
    read: Read
    unit: str
    more: str
    less: str


def _tokens(done: Done) -> float | None:
    spent = done.spent
    if spent.input_tokens is None or spent.output_tokens is None:
        return None
    return float(spent.input_tokens + spent.output_tokens)


MEASURES = (
    Measure(
        name="success", read=lambda d: d.success, unit="points", more="solves more", less="less"
    ),
    Measure(name="tokens", read=_tokens, unit="tokens", more="uses more", less="uses fewer"),
    Measure(name="cost", read=lambda d: d.spent.usd, unit="USD", more="costs more", less="less"),
    Measure(
        name="time", read=lambda d: d.seconds, unit="s", more="takes longer", less="is quicker"
    ),
)


def per_task(results: Results, arm: str, read: Read) -> dict[str, float]:
    """The mean over the attempts of each task; not of tasks with an attempt that is not known."""
    means: dict[str, float] = {}
    for task in results.tasks:
        values = [read(done) for done in results.of(arm, task)]
        known = [value for value in values if value is not None]
        if known and len(known) == len(values):
            means[task] = statistics.fmean(known)
    return means


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Second arm less first, over the tasks of which both are known."""

    first: str
    second: str
    measure: Measure
    estimate: Estimate | None
    compared: int
    """Comparisons in the report."""

    def sentence(self) -> str:
        """The conclusion that may be drawn."""
        about = f"{self.measure.name.capitalize()}, {self.second} against {self.first}"
        if self.estimate is None:
            return f"{about}: not known."
        if self.estimate.low is None:
            return f"{about}: all tasks give the same, so there is no interval and nothing to say."
        if self.estimate.low <= 0 <= (self.estimate.high or 0):
            return f"{about}: the interval contains 0: nothing can be said about it."
        if not self.estimate.sure:
            return f"{about}: too little for one of {self.compared} comparisons: nothing is said."
        word = self.measure.more if self.estimate.value > 0 else self.measure.less
        return f"{about}: {self.second} {word}, also as one of {self.compared} comparisons."


def differences(results: Results) -> list[Difference]:
    """Every pair of arms in every measure."""
    found, pairs = [], list(combinations(results.plan.arms, 2))
    compared = len(pairs) * len(MEASURES)
    for first, second in pairs:
        for measure in MEASURES:
            one, other = (per_task(results, arm, measure.read) for arm in (first, second))
            values = [
                other[task] - one[task] for task in results.tasks if task in one and task in other
            ]
            estimate = resampled(values, compared)
            if estimate and measure.name == "success":
                estimate = estimate.within(-1, 1)
            found.append(
                Difference(
                    first=first,
                    second=second,
                    measure=measure,
                    estimate=estimate,
                    compared=compared,
                )
            )
    return found
