"""Winsorised means and medians of amounts, and of resamples of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

WINSOR_SHARE = 0.05
"""Share of the runs at either end that count as the nearest run inside, because a few runaway runs
dominate a plain mean of costs."""

RESAMPLES = 500
"""Enough to estimate a standard error within about 3 %."""

_MOST_CELLS = 500_000  # numbers held at once while resampling: 4 MB per array


def generator_of(seed: bytes) -> np.random.Generator:
    """A random generator that gives the same numbers for the same seed."""
    return np.random.default_rng(list(seed))


def typical(runs: Sequence[tuple[str, float]]) -> tuple[float, float]:
    """Winsorised mean and median of at least one (unit, amount) pair."""
    values, _ = _arrays(runs)
    means, medians = _typical(values, np.ones((1, len(values))))
    return float(means[0]), float(medians[0])


def log_error(above: Floats, below: Floats) -> float:
    """Standard error of the logarithm of a ratio, over draws of both of its parts."""
    return float(np.std(np.log(above / below), ddof=1))


def resampled(
    runs: Sequence[tuple[str, float]], generator: np.random.Generator
) -> tuple[Floats, Floats]:
    """Winsorised means and medians of RESAMPLES draws of the units among (unit, amount) pairs."""
    values, units = _arrays(runs)
    count = int(units.max()) + 1
    rows = max(1, _MOST_CELLS // len(values))
    parts = []
    for start in range(0, RESAMPLES, rows):
        draws = min(rows, RESAMPLES - start)
        parts.append(_typical(values, _drawn(count, draws, generator)[:, units]))
    means, medians = zip(*parts, strict=True)
    return np.concatenate(means), np.concatenate(medians)


def _drawn(count: int, draws: int, generator: np.random.Generator) -> Floats:
    """How often each of `count` units is drawn when as many are drawn; one row per draw."""
    picked = generator.integers(0, count, (draws, count)) + count * np.arange(draws)[:, None]
    times = np.bincount(picked.ravel(), minlength=draws * count)
    return times.reshape(draws, count).astype(np.float64)


def _arrays(runs: Sequence[tuple[str, float]]) -> tuple[Floats, NDArray[np.intp]]:
    """The values in ascending order, and for each the number of its unit."""
    values = np.array([value for _, value in runs], dtype=np.float64)
    _, units = np.unique(np.array([unit for unit, _ in runs]), return_inverse=True)
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
    # With an even number of runs the median lies between two of them.
    lower = values[_first_at(passed, half)]
    upper = values[_first_at(passed, half, beyond=True)]
    return means, (lower + upper) / 2


def _first_at(passed: Floats, mark: Floats, *, beyond: bool = False) -> NDArray[np.intp]:
    """Index of the first value at (or beyond) a weight of `mark`, for each row."""
    reached = passed > mark + 1e-9 if beyond else passed >= mark - 1e-9
    first: NDArray[np.intp] = np.argmax(reached, axis=1)
    return first
