"""The numerical part of calibration: a ridge logistic model with fixed signs, and its scale."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

RIDGE = 30.0
PRIOR_WEIGHT = 0.15
"""The ridge draws each standardised weight towards this value: every feature helps a little."""
INTERCEPT_RIDGE = 0.05
FIRST_STEP = 3
"""Earlier steps hold too little evidence to learn from."""
MOST_ROUNDS = 50
CONVERGED = 1e-8
LEAST_GAP = 0.1

Array = np.ndarray[Any, np.dtype[np.float64]]
Stratum = tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """One run: features per step (steps x features), outcome, and where it may be compared."""

    features: Array
    failed: bool
    stratum: Stratum


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """Weights of standardised features; `index` is their sum, without any intercept."""

    mean: Array
    deviation: Array
    weights: Array

    def index(self, features: Array) -> Array:
        """One value per step; higher means more like a failed run of the same stratum."""
        return np.asarray(((features - self.mean) / self.deviation) @ self.weights)

    def linear(self) -> tuple[Array, float]:
        """Weights per unit of each raw feature, and the constant that goes with them."""
        weights = self.weights / self.deviation
        return weights, -float(self.mean @ weights)


def fit_model(examples: Sequence[Example], signs: Sequence[int]) -> Model:
    """Fit a model; each run has the same weight, whatever its length.

    While fitting, every stratum has its own intercept, so that a feature which only separates
    strata earns no weight; the intercepts are dropped afterwards.
    """
    strata = {name: i for i, name in enumerate(sorted({e.stratum for e in examples}))}
    rows, outcome, weight, stratum = [], [], [], []
    for example in examples:
        kept = example.features[min(FIRST_STEP, len(example.features) - 1) :]
        rows.append(kept)
        outcome += [float(example.failed)] * len(kept)
        weight += [1.0 / len(kept)] * len(kept)
        stratum += [strata[example.stratum]] * len(kept)
    x, w = np.vstack(rows), np.array(weight)
    mean = np.average(x, axis=0, weights=w)
    deviation = np.sqrt(np.average((x - mean) ** 2, axis=0, weights=w)) + 1e-9
    intercepts = np.eye(len(strata))[np.array(stratum)]
    direction = np.array(signs, dtype=np.float64)
    weights = _fit_with_signs((x - mean) / deviation * direction, np.array(outcome), w, intercepts)
    return Model(mean=mean, deviation=deviation, weights=weights * direction)


def _fit_with_signs(x: Array, y: Array, w: Array, intercepts: Array) -> Array:
    """Ridge weights, none below zero: features whose weight would be negative are left out."""
    kept = np.ones(x.shape[1], dtype=bool)
    while True:
        weights = np.zeros(x.shape[1])
        weights[kept] = _newton(x[:, kept], y, w, intercepts)
        wrong = kept & (weights < 0)
        if not wrong.any():
            return weights
        kept &= ~wrong


def _newton(x: Array, y: Array, w: Array, intercepts: Array) -> Array:
    design = np.hstack([x, intercepts])
    count = x.shape[1]
    target = np.concatenate([np.full(count, PRIOR_WEIGHT), np.zeros(intercepts.shape[1])])
    ridge = np.concatenate([np.full(count, RIDGE), np.full(intercepts.shape[1], INTERCEPT_RIDGE)])
    beta = target.copy()
    for _ in range(MOST_ROUNDS):
        chance = squash(design @ beta)
        gradient = design.T @ (w * (chance - y)) + ridge * (beta - target)
        curvature = (design * (w * chance * (1 - chance))[:, None]).T @ design + np.diag(ridge)
        step = np.linalg.solve(curvature, gradient)
        beta = beta - step
        if np.abs(step).max() < CONVERGED:
            break
    return np.asarray(beta[:count])


def squash(value: Array) -> Array:
    """The logistic function."""
    return np.asarray(1.0 / (1.0 + np.exp(-np.clip(value, -30.0, 30.0))))


def folds_of(groups: Iterable[str], folds: int, seed: int) -> dict[str, int]:
    """Each group's fold, the same for the same groups and seed."""
    names = sorted(set(groups))
    order = np.random.default_rng(seed).permutation(len(names))
    return {names[position]: i % folds for i, position in enumerate(order)}


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleTarget:
    """The share of the successful runs that hold a score for a whole window of steps."""

    score: float
    window: int
    share: float


def fit_scale(
    indices: Sequence[Array], hard: ScaleTarget, easy: ScaleTarget
) -> tuple[float, float]:
    """Slope and intercept that turn an index into log odds of the score, from successful runs.

    `hard.share` of them stay above the hard score for a whole window, `easy.share` of them below
    the easy score.
    """
    peaks = np.array([_held_above(index, hard.window) for index in indices])
    lows = np.array([-_held_above(-index, easy.window) for index in indices])
    high = float(np.quantile(peaks, 1.0 - hard.share, method="lower"))
    low = float(np.quantile(lows, easy.share, method="lower"))
    if not math.isfinite(low):
        low = high - 1.0 if math.isfinite(high) else 0.0
    if not math.isfinite(high):
        high = low + 1.0
    slope = (_log_odds(hard.score) - _log_odds(easy.score)) / max(high - low, LEAST_GAP)
    return slope, _log_odds(hard.score) - slope * high


def _held_above(index: Array, window: int) -> float:
    """The highest value that the index stays above for a whole window; -inf for a shorter run."""
    if len(index) < window:
        return -math.inf
    return float(np.lib.stride_tricks.sliding_window_view(index, window).min(axis=1).max())


def _log_odds(chance: float) -> float:
    return math.log(chance / (1.0 - chance))
