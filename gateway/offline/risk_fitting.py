"""Fits the risk of a run to outcomes: a ridge logistic model within one source and model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gateway.offline.labelled_runs import LabelledRun
from gateway.offline.ridge import Array, Model, fit_logistic, folds_of
from gateway.steering.scoring.risk import LASTING_STEPS

RIDGE = 30.0
STRATUM_RIDGE = 0.05
LENGTH_POWER = 0.5
"""A run weighs as this power of its steps: with 0 the risk is right at the ends of runs and too low
over all steps, with 1 a few long runs decide."""
ALARM_SHARE = 0.02
"""Share of the solved runs, read by models that never saw them, whose evidence lasts at the level
from which a run is likely to fail."""
LEAST_SOLVED = 40
"""Solved runs of a kind from which its level can be estimated."""
LEVEL_MARGIN = 0.01
"""Log odds by which a level is above the last solved run that stays below it."""


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
    """Fit the model; a run has the weight of its steps to the power of LENGTH_POWER.

    While fitting, every source and model has its own intercept, so that a feature which only tells
    them apart earns no weight.
    """
    strata = {name: i for i, name in enumerate(sorted({run.stratum for run in runs}))}
    lengths = [len(run.totals) for run in runs]
    features = np.vstack([run.totals for run in runs])
    weight = np.repeat([length ** (LENGTH_POWER - 1.0) for length in lengths], lengths)
    weight *= len(runs) / weight.sum()
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
    by_run = np.repeat([1.0 / length for length in lengths], lengths)
    return RiskModel(
        model=model,
        works=_mean(evidence[works], by_run[works]),
        talks=_mean(evidence[~works], by_run[~works]),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class AlarmLevels:
    """The evidence from which a run of either kind is likely to fail; infinite = never."""

    works: float = math.inf
    talks: float = math.inf

    def reached(self, run: LabelledRun, evidence: Array) -> Array:
        """Per step, whether the evidence has lasted at its level."""
        level = np.where(run.works_from, self.works, self.talks)
        return np.asarray(_lasting(evidence - level) >= 0.0)


def alarm_levels(runs: Sequence[LabelledRun], evidence: Sequence[Array]) -> AlarmLevels:
    """The levels above which the evidence of ALARM_SHARE of the solved runs of a kind lasts.

    `evidence` per step of each run, by a model that never saw it. Too few solved runs set none.
    """
    levels = []
    for works in (True, False):
        peaks = sorted(
            float(_lasting(own).max(initial=-math.inf))
            for run, own in zip(runs, evidence, strict=True)
            if not run.failed and run.works == works
        )
        allowed = int(ALARM_SHARE * len(peaks))
        few = len(peaks) < LEAST_SOLVED
        levels.append(math.inf if few else max(peaks[-1 - allowed], 0.0) + LEVEL_MARGIN)
    return AlarmLevels(works=levels[0], talks=levels[1])


def _lasting(values: Array) -> Array:
    """Per step, the least value of the newest LASTING_STEPS; -inf before there are so many."""
    padded = np.concatenate([np.full(LASTING_STEPS - 1, -np.inf), values])
    return np.asarray(np.lib.stride_tricks.sliding_window_view(padded, LASTING_STEPS).min(axis=1))


def _mean(values: Array, weight: Array) -> float:
    return float(np.average(values, weights=weight)) if len(values) else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOutRisk:
    """Evidence per step of each run by a model that never saw its group, and whether it has lasted
    at the level that the runs of the other folds set; `levels`: those that all runs set."""

    evidence: Sequence[Array]
    likely: Sequence[Array]
    levels: AlarmLevels


def held_out_risk(runs: Sequence[LabelledRun], folds: int, seed: int) -> HeldOutRisk:
    """Evidence that each run fails, held out by group."""
    fold = folds_of((run.recording.group for run in runs), folds, seed)
    own = [fold[run.recording.group] for run in runs]
    models = [
        fit_risk([run for run, n in zip(runs, own, strict=True) if n != k]) for k in range(folds)
    ]
    evidence = [models[n].log_odds(run) for run, n in zip(runs, own, strict=True)]
    levels = []
    for k in range(folds):
        others = [i for i, n in enumerate(own) if n != k]
        levels.append(alarm_levels([runs[i] for i in others], [evidence[i] for i in others]))
    likely = [levels[n].reached(run, e) for run, n, e in zip(runs, own, evidence, strict=True)]
    return HeldOutRisk(evidence=evidence, likely=likely, levels=alarm_levels(runs, evidence))
