"""Winsorised means and medians of amounts, and of resamples of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Counts = NDArray[np.intp]

WINSOR_SHARE = 0.05
"""Share of the runs at either end that count as the nearest run inside, because a few runaway runs
dominate a plain mean of costs."""

MOST_RESAMPLES = 500
"""Enough to estimate a standard error within about 3 % (one over the root of twice as many)."""

FEWEST_RESAMPLES = 200
"""The same within 5 %: for thousands of runs, whose intervals are narrow and whose draws long."""

_SLACK = 1e-9  # of a mark among whole numbers
_MOST_DRAWN = 500_000  # runs in all draws together, unless that is fewer than FEWEST_RESAMPLES
# Numbers held at once while resampling. An array of 128 kB comes from the heap again and again;
# larger ones are asked of the system and given back each time, which took longer than the sums.
_MOST_CELLS = 16_000


def generator_of(seed: bytes) -> np.random.Generator:
    """A random generator that gives the same numbers for the same seed."""
    return np.random.default_rng(list(seed))


def typical(amounts: Sequence[float]) -> tuple[float, float]:
    """Winsorised mean and median of at least one amount."""
    values = np.sort(np.array(amounts, dtype=np.float64))
    means, medians = _typical(values, np.ones((1, len(values)), dtype=np.intp))
    return float(means[0]), float(medians[0])


def log_error(above: Floats, below: Floats) -> float:
    """Standard error of the logarithm of a ratio, over draws of both of its parts."""
    return float(np.std(np.log(above / below), ddof=1))


def resamples_for(runs: int) -> int:
    """How many draws the larger of two arms, with `runs` runs, is worth: fewer of long ones."""
    return min(MOST_RESAMPLES, max(FEWEST_RESAMPLES, _MOST_DRAWN // runs))


def resampled(
    runs: Sequence[tuple[str, float]], generator: np.random.Generator, resamples: int
) -> tuple[Floats, Floats]:
    """Winsorised means and medians of `resamples` draws of the units among (unit, amount) pairs."""
    values, units = _arrays(runs)
    count = int(units.max()) + 1
    rows = max(1, _MOST_CELLS // len(values))
    parts = []
    for start in range(0, resamples, rows):
        drawn = _drawn(count, min(rows, resamples - start), generator)
        # Units of one run each are as likely drawn in any order: there is nothing to look up.
        parts.append(_typical(values, drawn if count == len(values) else drawn[:, units]))
    means, medians = zip(*parts, strict=True)
    return np.concatenate(means), np.concatenate(medians)


def _drawn(count: int, draws: int, generator: np.random.Generator) -> Counts:
    """How often each of `count` units is drawn when as many are drawn; one row per draw."""
    picked = generator.integers(0, count, (draws, count), dtype=np.uint32)
    picked += (count * np.arange(draws, dtype=np.uint32))[:, None]
    times = np.bincount(picked.ravel(), minlength=draws * count)
    return times.reshape(draws, count)


def _arrays(runs: Sequence[tuple[str, float]]) -> tuple[Floats, Counts]:
    """The values in ascending order, and for each the number of its unit."""
    values = np.array([value for _, value in runs], dtype=np.float64)
    names = [unit for unit, _ in runs]
    if len(set(names)) == len(names):  # then any order is as good, and names are slow to sort
        return np.sort(values), np.arange(len(names))
    _, units = np.unique(np.array(names), return_inverse=True)
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
    """Index of the first value at a weight of each of its row's `marks` (a row of marks for each
    kind of mark), for each row of `passed`."""
    count, width = passed.shape
    # Each row a step above the one before: one ascending array, and one search for all rows.
    steps = np.arange(count) * (passed[:, -1].max() + 1)
    ascending = (passed + steps[:, None]).ravel()
    first = np.searchsorted(ascending, marks + steps - _SLACK)
    found: Counts = first - np.arange(count) * width
    return found
