"""Fits the scorer and the risk to recorded runs, and reads each run with models of other runs.

Difficulty is a ridge logistic regression of trouble ahead (`trouble`) on the newest stretch, with
fixed signs; the scale is set on the out-of-fold log odds. Risk is one of outcomes, within one
source and model. Cross-validation keeps each group of runs in one fold.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gateway.errors import ConfigError
from gateway.offline.evaluation import POINTS, RunReading, auroc, balanced_precision, signal_rates
from gateway.offline.labelled_runs import Array, LabelledRun, trouble_ahead
from gateway.offline.playback import ALARM, RISK, STATE_SIGNALS, first_showings
from gateway.steering.fsm import FSMSettings, FSMState, next_state
from gateway.steering.monitors import MONITORS
from gateway.steering.monitors.suite import with_alarm
from gateway.steering.scoring.calibrated import settled
from gateway.steering.scoring.calibration import FEATURES, SIGNS, Calibration, RiskWeights
from gateway.steering.scoring.risk import LASTING_STEPS, risk_of

FOLDS = 5
SEED = 1
RIDGE = 30.0
EASY_SHARE = 0.4
"""Share of all steps whose stretch is easy: below the FAST threshold."""
HARD_CHANCE = 0.5
"""Chance of trouble ahead from which a stretch is hard: above the SLOW threshold."""
BUDGET_QUANTILE = 0.98
BUDGET_FACTOR = 4.0
DEFAULT_BUDGETS = (190, 60)
SIGNIFICANT = 6
LEAST_RUNS = 20
LEAST_SLOPE = 0.1
RISK_RIDGE = 30.0
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
MOST_ROUNDS = 50
CONVERGED = 1e-8

Solve = Callable[[Array, Array, Array, Array], Array]
"""Coefficients of a logistic regression from the design, outcomes, weights of the rows, and the
penalty of the square of each coefficient."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """A calibration, and how each run is read by a model fitted without the run's group.

    `reference`: the same runs read by the reference scorer and monitors.
    """

    calibration: Calibration
    held_out: tuple[RunReading, ...]
    reference: tuple[RunReading, ...]


def fit(runs: Sequence[LabelledRun], *, seed: int = SEED, solve: Solve | None = None) -> Fitted:
    """Fit the scorer to these runs; the same runs and seed give the same numbers.

    `solve`: what finds the coefficients, None for `newton`.

    Raises:
        ConfigError: too few runs or groups, or no stratum with both outcomes.
    """
    runs = sorted(runs, key=lambda run: (run.recording.id, run.digest))
    _require_enough(runs)
    ahead = _held_out(runs, seed, solve)
    slope, intercept = _scale(ahead)
    weights, offset = _fit_difficulty(runs, solve).linear()
    risk, risks = fit_risk(runs, solve), held_out_risk(runs, seed, solve)
    held_out = tuple(
        _reading(run, slope * odds + intercept, evidence, likely)
        for run, odds, evidence, likely in zip(
            runs, ahead, risks.evidence, risks.likely, strict=True
        )
    )
    budgets = _budgets(runs)
    calibration = Calibration(
        bias=_rounded(slope * offset + intercept),
        weights=tuple([_rounded(slope * weight) for weight in weights]),
        risk=_risk_weights(risk, risks.levels),
        budget_works=budgets[0],
        budget_talks=budgets[1],
        precision=_precision(held_out),
        provenance=_provenance(runs, held_out, seed),
    )
    reference = tuple(run.reference for run in runs)
    return Fitted(calibration=calibration, held_out=held_out, reference=reference)


def _require_enough(runs: Sequence[LabelledRun]) -> None:
    if len(runs) < LEAST_RUNS:
        raise ConfigError(f"calibrate: {len(runs)} labelled runs, at least {LEAST_RUNS} are needed")
    outcomes: dict[tuple[str, str], set[bool]] = {}
    for run in runs:
        outcomes.setdefault(run.stratum, set()).add(run.failed)
    if all(len(seen) < 2 for seen in outcomes.values()):
        raise ConfigError("calibrate: no source and model with both failed and successful runs")
    if len({run.recording.group for run in runs}) < FOLDS:
        raise ConfigError(f"calibrate: fewer than {FOLDS} groups to cross-validate over")


def _fit_difficulty(runs: Sequence[LabelledRun], solve: Solve | None) -> Model:
    labels = np.concatenate([trouble_ahead(run.troubles) for run in runs])
    known = ~np.isnan(labels)
    features = np.vstack([run.features for run in runs])[known]
    signs = [SIGNS[name] for name in FEATURES]
    return fit_logistic(
        features, labels[known], np.ones(len(features)), ridge=RIDGE, signs=signs, solve=solve
    )


def _held_out(runs: Sequence[LabelledRun], seed: int, solve: Solve | None) -> list[Array]:
    """Log odds of trouble ahead, each run's by a model that never saw its group."""
    fold = folds_of((run.recording.group for run in runs), FOLDS, seed)
    models = [
        _fit_difficulty([r for r in runs if fold[r.recording.group] != k], solve)
        for k in range(FOLDS)
    ]
    return [models[fold[run.recording.group]].log_odds(run.features) for run in runs]


def _risk_weights(risk: RiskModel, levels: AlarmLevels) -> RiskWeights:
    weights, offset = risk.model.linear()
    return RiskWeights(
        weights=tuple([_rounded(weight) for weight in weights]),
        works=_rounded(risk.works - offset),
        talks=_rounded(risk.talks - offset),
        works_alarm=_rounded(levels.works),
        talks_alarm=_rounded(levels.talks),
    )


def _scale(ahead: Sequence[Array]) -> tuple[float, float]:
    """Slope and intercept from log odds of trouble to those of the score."""
    fsm = FSMSettings()
    easy = float(np.quantile(np.concatenate(ahead), EASY_SHARE))
    hard = _log_odds(HARD_CHANCE)
    wanted = _log_odds(fsm.slow_threshold) - _log_odds(fsm.fast_threshold)
    slope = wanted / max(hard - easy, LEAST_SLOPE)
    return slope, _log_odds(fsm.slow_threshold) - slope * hard


def _log_odds(chance: float) -> float:
    return math.log(chance / (1.0 - chance))


def _reading(run: LabelledRun, odds: Array, evidence: Array, likely: Array) -> RunReading:
    """The run as the gateway would have read it with these log odds of difficulty and risk."""
    fsm = FSMSettings()
    state, history, steps = FSMState.INIT, [], []
    for index, fired in enumerate(run.fired):
        score = settled(float(odds[index]), float(run.known[index]))
        history.append(with_alarm(score, fired))
        state = next_state(state, history[-fsm.longest_window :], fsm)
        steps.append(
            {
                "index": index,
                "state": state.value,
                "fired": fired,
                "likely_fails": bool(likely[index]),
            }
        )
    recording = run.recording
    return RunReading(
        id=recording.id,
        source=recording.source,
        model=recording.model,
        group=recording.group,
        failed=run.failed,
        scores=tuple(history),
        risks=tuple([risk_of(float(each)) for each in evidence]),
        troubles=tuple(run.troubles.tolist()),
        states=tuple(str(step["state"]) for step in steps),
        first=first_showings(steps),
        mistake_step=recording.mistake_step,
    )


def _budgets(runs: Sequence[LabelledRun]) -> tuple[int, int]:
    """Budgets in calls, for agents that work on files and for others.

    BUDGET_FACTOR times the calls within which nearly all successful runs ended.
    """
    budgets = []
    for works, default in zip((True, False), DEFAULT_BUDGETS, strict=True):
        calls = [run.calls for run in runs if not run.failed and run.works == works]
        if len(calls) < LEAST_RUNS:
            budgets.append(default)
        else:
            budgets.append(math.ceil(BUDGET_FACTOR * float(np.quantile(calls, BUDGET_QUANTILE))))
    return budgets[0], budgets[1]


def _precision(held_out: Sequence[RunReading]) -> dict[str, float]:
    signals = (*MONITORS, *STATE_SIGNALS, RISK, ALARM)
    return {name: round(balanced_precision(held_out, name), 3) for name in signals}


def _provenance(
    runs: Sequence[LabelledRun], held_out: Sequence[RunReading], seed: int
) -> dict[str, Any]:
    rankings = {point: str(auroc(held_out, point)) for point in POINTS}
    alarm = signal_rates(held_out, ALARM)
    return {
        "data_sha256": hashlib.sha256("".join(run.digest for run in runs).encode()).hexdigest(),
        "runs": len(runs),
        "steps": sum(len(run.features) for run in runs),
        "groups": len({run.recording.group for run in runs}),
        "failed": sum(run.failed for run in runs),
        "sources": _counted(runs, lambda run: run.recording.source),
        "licenses": _counted(runs, lambda run: run.recording.license or "not stated"),
        "method": {
            "folds": FOLDS,
            "seed": seed,
            "ridge": RIDGE,
            "risk_ridge": RISK_RIDGE,
            "easy_share": EASY_SHARE,
            "hard_chance": HARD_CHANCE,
        },
        "held_out": {
            "auroc": rankings,
            "alarms": {"failed": alarm.failed_count, "successful": alarm.successful_count},
        },
    }


def _counted(runs: Sequence[LabelledRun], key: Callable[[LabelledRun], str]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for run in runs:
        counts[key(run)] = counts.get(key(run), 0) + 1
    return dict(sorted(counts.items()))


def _rounded(value: float) -> float:
    """The value to SIGNIFICANT digits; further digits differ between processors."""
    return float(f"{value:.{SIGNIFICANT}g}")


# Risk.


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


def fit_risk(runs: Sequence[LabelledRun], solve: Solve | None = None) -> RiskModel:
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
        ridge=RISK_RIDGE,
        strata=np.eye(len(strata))[np.repeat([strata[run.stratum] for run in runs], lengths)],
        stratum_ridge=STRATUM_RIDGE,
        solve=solve,
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


def held_out_risk(
    runs: Sequence[LabelledRun], seed: int, solve: Solve | None = None
) -> HeldOutRisk:
    """Evidence that each run fails, held out by group."""
    fold = folds_of((run.recording.group for run in runs), FOLDS, seed)
    own = [fold[run.recording.group] for run in runs]
    models = [
        fit_risk([run for run, n in zip(runs, own, strict=True) if n != k], solve)
        for k in range(FOLDS)
    ]
    evidence = [models[n].log_odds(run) for run, n in zip(runs, own, strict=True)]
    levels = []
    for k in range(FOLDS):
        others = [i for i, n in enumerate(own) if n != k]
        levels.append(alarm_levels([runs[i] for i in others], [evidence[i] for i in others]))
    likely = [levels[n].reached(run, e) for run, n, e in zip(runs, own, evidence, strict=True)]
    return HeldOutRisk(evidence=evidence, likely=likely, levels=alarm_levels(runs, evidence))


# Logistic regression.


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
    solve: Solve | None = None,
) -> Model:
    """Fit a model; `features` is rows x features, `outcome` 0 or 1 and `weight` one per row.

    `ridge` draws each standardised weight towards 0. `signs`: the sign that each weight must have,
    0 = either; a feature whose weight would have the other one is left out. `strata` (rows x
    strata, 0 or 1) adds an intercept per stratum while fitting, drawn towards 0 by
    `stratum_ridge`, so that a feature which only separates strata earns no weight. `solve`: what
    finds the coefficients, None for `newton`.
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
        beta = (solve or newton)(design, outcome, weight, penalty)
        weights = np.zeros(x.shape[1])
        weights[kept] = beta[: int(kept.sum())]
        wrong = kept & (weights * wanted < 0)
        if not wrong.any():
            break
        kept &= ~wrong
    return Model(mean=mean, deviation=deviation, weights=weights, intercept=float(beta[-1]))


def newton(design: Array, outcome: Array, weight: Array, penalty: Array) -> Array:
    """The coefficients by Newton's method; see `Solve`."""
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
