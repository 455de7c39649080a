"""Fits the risk of a run to outcomes: a ridge logistic model within one source and model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gateway.offline.labelled_runs import LabelledRun
from gateway.offline.ridge import Array, Model, fit_logistic, folds_of

RIDGE = 30.0
STRATUM_RIDGE = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class RiskModel:
    """Fitted weights, and the mean evidence of runs that work on files or programs, and of others.

    A risk is about what is unusual for a run of its kind; how often runs fail is for the prior.
    """

    model: Model
    works: float
    talks: float

    def log_odds(self, run: LabelledRun) -> Array:
        """Evidence per step that the run fails."""
        average = np.where(run.works_from, self.works, self.talks)
        return self.model.log_odds(run.totals) - average


def fit_risk(runs: Sequence[LabelledRun]) -> RiskModel:
    """Fit the model; each run has the same weight, whatever its length.

    While fitting, every source and model has its own intercept, so that a feature which only tells
    them apart earns no weight.
    """
    strata = {name: i for i, name in enumerate(sorted({run.stratum for run in runs}))}
    lengths = [len(run.totals) for run in runs]
    features = np.vstack([run.totals for run in runs])
    weight = np.repeat([1.0 / length for length in lengths], lengths)
    model = fit_logistic(
        features,
        np.repeat([float(run.failed) for run in runs], lengths),
        weight,
        ridge=RIDGE,
        strata=np.eye(len(strata))[np.repeat([strata[run.stratum] for run in runs], lengths)],
        stratum_ridge=STRATUM_RIDGE,
    )
    works = np.repeat([run.works for run in runs], lengths)
    evidence = model.log_odds(features)
    return RiskModel(
        model=model,
        works=_mean(evidence[works], weight[works]),
        talks=_mean(evidence[~works], weight[~works]),
    )


def _mean(values: Array, weight: Array) -> float:
    return float(np.average(values, weights=weight)) if len(values) else 0.0


def held_out_risk(runs: Sequence[LabelledRun], folds: int, seed: int) -> list[Array]:
    """Evidence per step that each run fails, by a model that never saw the run's group."""
    fold = folds_of((run.recording.group for run in runs), folds, seed)
    models = [fit_risk([r for r in runs if fold[r.recording.group] != k]) for k in range(folds)]
    return [models[fold[run.recording.group]].log_odds(run) for run in runs]
