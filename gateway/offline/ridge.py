"""The numerical part of calibration: ridge logistic regression with fixed signs, and folds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

MOST_ROUNDS = 50
CONVERGED = 1e-8

Array = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """Weights of standardised features and the constant that goes with them."""

    mean: Array
    deviation: Array
    weights: Array
    intercept: float

    def log_odds(self, features: Array) -> Array:
        """Log odds per row of `features` (rows x features)."""
        standard = (features - self.mean) / self.deviation
        return np.asarray(standard @ self.weights + self.intercept)

    def linear(self) -> tuple[Array, float]:
        """Weights per unit of each raw feature, and the constant that goes with them."""
        weights = self.weights / self.deviation
        return weights, self.intercept - float(self.mean @ weights)


def fit_logistic(
    features: Array,
    outcome: Array,
    weight: Array,
    *,
    ridge: float,
    signs: Sequence[int] | None = None,
    strata: Array | None = None,
    stratum_ridge: float = 1.0,
) -> Model:
    """Fit a model; `features` is rows x features, `outcome` 0 or 1 and `weight` one per row.

    `ridge` draws each standardised weight towards 0. `signs`: the sign that each weight must have,
    0 = either; a feature whose weight would have the other one is left out. `strata` (rows x
    strata, 0 or 1) adds an intercept per stratum while fitting, drawn towards 0 by
    `stratum_ridge`, so that a feature which only separates strata earns no weight.
    """
    mean = np.average(features, axis=0, weights=weight)
    deviation = np.sqrt(np.average((features - mean) ** 2, axis=0, weights=weight)) + 1e-9
    x = (features - mean) / deviation
    own = np.zeros((len(x), 0)) if strata is None else strata
    wanted = np.zeros(x.shape[1]) if signs is None else np.array(signs, dtype=np.float64)
    kept = np.ones(x.shape[1], dtype=bool)
    while True:
        penalty = np.concatenate(
            [np.full(int(kept.sum()), ridge), np.full(own.shape[1], stratum_ridge), [1e-6]]
        )
        design = np.hstack([x[:, kept], own, np.ones((len(x), 1))])
        beta = _newton(design, outcome, weight, penalty)
        weights = np.zeros(x.shape[1])
        weights[kept] = beta[: int(kept.sum())]
        wrong = kept & (weights * wanted < 0)
        if not wrong.any():
            break
        kept &= ~wrong
    return Model(mean=mean, deviation=deviation, weights=weights, intercept=float(beta[-1]))


def _newton(design: Array, outcome: Array, weight: Array, penalty: Array) -> Array:
    beta = np.zeros(design.shape[1])
    for _ in range(MOST_ROUNDS):
        chance = squash(design @ beta)
        gradient = design.T @ (weight * (chance - outcome)) + penalty * beta
        curvature = (design * (weight * chance * (1 - chance))[:, None]).T @ design
        step = np.linalg.solve(curvature + np.diag(penalty), gradient)
        beta = beta - step
        if np.abs(step).max() < CONVERGED:
            break
    return beta


def squash(value: Array) -> Array:
    """The logistic function."""
    return np.asarray(1.0 / (1.0 + np.exp(-np.clip(value, -30.0, 30.0))))


def folds_of(groups: Iterable[str], folds: int, seed: int) -> dict[str, int]:
    """Each group's fold, the same for the same groups and seed."""
    names = sorted(set(groups))
    order = np.random.default_rng(seed).permutation(len(names))
    return {names[position]: i % folds for i, position in enumerate(order)}
