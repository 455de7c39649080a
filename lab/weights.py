"""Fits the scorer and the risk to recorded runs, and reads each run with models of other runs.

Difficulty is a ridge logistic regression of trouble ahead on the newest stretch, with fixed signs;
the scale is set on the out-of-fold log odds. Risk is one of outcomes, within one source and model.
Cross-validation keeps each group of runs in one fold."""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from msgspec import to_builtins

from gateway.errors import ConfigError
from gateway.learning.own_risk import newton
from gateway.offline.playback import ALARM, RISK, STATE_SIGNALS, first_showings
from gateway.offline.recordings import Recording, RunLabel, steps_of
from gateway.steering.evidence.observation import RunObserver
from gateway.steering.evidence.repeats import spends
from gateway.steering.fold import RunFold
from gateway.steering.fsm import FSMSettings, FSMState, next_state
from gateway.steering.monitors import MONITORS, MonitorSettings
from gateway.steering.monitors.suite import RobustSuite, with_alarm
from gateway.steering.policy import Policy
from gateway.steering.scoring.calibrated import StretchFeatures, settled
from gateway.steering.scoring.calibration import (
    FALSE_ALARMS,
    FEATURES,
    FORMAT,
    NEVER,
    RISK_FEATURES,
    SIGNS,
    Calibration,
    Peaks,
    RiskWeights,
    WordWeights,
    shipped_calibration,
    shipped_words,
)
from gateway.steering.scoring.risk import LASTING_STEPS, RunTotals, RunWords, risk_of
from gateway.steering.scoring.scorer import DifficultySettings
from gateway.steering.transcript.steps import Step
from lab.evaluation import POINTS, RunReading, auroc
from lab.signals import balanced_precision, signal_rates

Array = np.ndarray[Any, np.dtype[np.float64]]
Solve = Callable[[Array, Array, Array, Array], Array]
"""Coefficients of a logistic regression from the design, outcomes, weights of the rows, and the
penalty of the square of each coefficient."""
FitWords = Callable[[Sequence["LabelledRun"]], WordWeights]
"""The weights of words for a model that is fitted to these runs."""
_Fit = TypeVar("_Fit")

HORIZON = 5  # steps ahead in which trouble is counted; source: design section 7
LEAST_TROUBLES = 2  # of them that make a stretch hard: one look too many is no trouble
FOLDS = 5
SEED = 1
RIDGE = 30.0
EASY_SHARE = 0.4  # of all steps, whose stretch is easy: below the FAST threshold
HARD_CHANCE = 0.5  # of trouble ahead, from which a stretch is hard: above the SLOW threshold
BUDGET_QUANTILE = 0.98
BUDGET_FACTOR = 4.0
DEFAULT_BUDGETS = (190, 60)
SIGNIFICANT = 6
LEAST_RUNS = 20
LEAST_SLOPE = 0.1
RISK_RIDGE = 0.15
"""Per run. Strong: what the features say of one source hardly holds in another."""
RISK_SCALE = 1.5
"""Of the fitted weights: the ridge takes off more than what does not hold on runs of others."""
WORDS_SHARE = 0.4
"""Of the spread of the evidence of words and features, that of words."""
EARLY_STEPS = 4.0
"""Steps after which half of the evidence counts: of five steps .55 of it held, of ten .75."""
STRATUM_RIDGE = 0.05
# A run weighs as this power of its steps: with 0 the risk is right at the ends of runs and too low
# over all steps, with 1 a few long runs decide.
LENGTH_POWER = 0.5

_REFERENCE = Policy(
    difficulty=DifficultySettings(scorer="heuristic"), monitors=MonitorSettings(suite="reference")
)


# Labelled runs: the label of difficulty is trouble ahead, which every run has; that of risk is the
# outcome.


@dataclass(frozen=True, slots=True, kw_only=True)
class StepArrays:
    """The steps of a run as calibration reads them, one row or entry per step. `features`,
    `totals`: those of difficulty and of risk (steps x features). `words`: the different words of
    the thought. `known`: share of the window that is filled. `works_from`: whether the run works on
    files or programs by then. `troubles`: 1 where it is trouble. `fired`: the monitors that
    fire."""

    features: Array
    known: Array
    totals: Array
    words: Sequence[frozenset[str]]
    works_from: Array
    troubles: Array
    fired: Sequence[tuple[str, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelledRun:
    """A recording with an outcome, as calibration uses it. `reference`: the same steps read by the
    reference scorer and monitors. `calls`: how many count towards the budget. `digest`: SHA-256 of
    the id, the outcome and the steps."""

    label: RunLabel
    license: str
    steps: StepArrays
    reference: RunReading
    calls: int
    digest: str

    @property
    def works(self) -> bool:
        """Whether the agent reads or changes files."""
        return bool(self.steps.works_from[-1])


def label_run(recording: Recording) -> LabelledRun | None:
    """Read a recording for calibration; None if it has no outcome or no steps."""
    label, steps = recording.label, steps_of(recording)
    if label.success is None or not steps:
        return None
    observer, features, totals = RunObserver(), StretchFeatures(), RunTotals()
    suite = RobustSuite(MonitorSettings(suite="robust"))
    rows: list[tuple[Any, ...]] = []
    calls = 0
    for step in steps:
        observed = observer.observe(step)
        features.push(observed)
        totals.push(observed)
        suite.push_observed(observed)
        read = features.values(), features.known, totals.values(), totals.works
        vocabulary = observed.facts.vocabulary
        rows.append((*read, observed.trouble is not None, vocabulary, suite.readings().fired))
        calls += sum(spends(action, repeat) for action, repeat in observed.actions)
    *columns, words, fired = zip(*rows, strict=True)
    stretch, known, risk, works_from, troubles = (np.array(x, dtype=np.float64) for x in columns)
    text = repr((label.id, label.success, steps))
    return LabelledRun(
        label=label,
        license=recording.license,
        steps=StepArrays(
            features=stretch,
            known=known,
            totals=risk,
            words=words,
            works_from=works_from.astype(bool),
            troubles=troubles,
            fired=fired,
        ),
        reference=_reference(label, steps),
        calls=calls,
        digest=hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest(),
    )


def _reference(label: RunLabel, steps: Sequence[Step]) -> RunReading:
    fold = RunFold(_REFERENCE)
    outcomes = [fold.push(step) for step in steps]
    entries = [
        {"index": index, "state": outcome.state.value, "fired": outcome.readings.fired}
        for index, outcome in enumerate(outcomes)
    ]
    scores = tuple(outcome.difficulty for outcome in outcomes)
    return RunReading(label=label, scores=scores, first=first_showings(entries))


def trouble_ahead(troubles: Sequence[float] | Array) -> Array:
    """Per step, 1 if at least two of the next five steps are trouble, else 0; NaN for the last."""
    total = np.concatenate([[0.0], np.cumsum(np.asarray(troubles, dtype=np.float64))])
    length = len(total) - 1
    ahead = np.array([total[min(i + 1 + HORIZON, length)] - total[i + 1] for i in range(length)])
    labels = (ahead >= LEAST_TROUBLES).astype(np.float64)
    labels[-1:] = np.nan
    return np.asarray(labels)


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
    solve: Solve = newton,
) -> Model:
    """Fit a model; `features` is rows x features, `outcome` 0 or 1 and `weight` one per row.
    `ridge` draws each standardised weight towards 0. `signs`: the sign that each weight must have,
    0 = either; a feature whose weight would have the other one is left out. `strata` (rows x
    strata, 0 or 1) adds an intercept per stratum while fitting, drawn towards 0 by `stratum_ridge`,
    so that a feature which only separates strata earns no weight."""
    mean = np.average(features, axis=0, weights=weight)
    deviation = np.sqrt(np.average((features - mean) ** 2, axis=0, weights=weight)) + 1e-9
    x = (features - mean) / deviation
    own = np.zeros((len(x), 0)) if strata is None else strata
    wanted = np.zeros(x.shape[1]) if signs is None else np.array(signs, dtype=np.float64)
    kept = np.ones(x.shape[1], dtype=bool)
    while True:
        count = int(kept.sum())
        penalty = np.repeat([ridge, stratum_ridge, 1e-6], [count, own.shape[1], 1])
        design = np.hstack([x[:, kept], own, np.ones((len(x), 1))])
        beta = solve(design, outcome, weight, penalty)
        weights = np.zeros(x.shape[1])
        weights[kept] = beta[:count]
        wrong = kept & (weights * wanted < 0)
        if not wrong.any():
            return Model(mean=mean, deviation=deviation, weights=weights, intercept=float(beta[-1]))
        kept &= ~wrong


def folds_of(groups: Iterable[str], folds: int, seed: int) -> dict[str, int]:
    """Each group's fold, the same for the same groups and seed."""
    names = sorted(set(groups))
    order = np.random.default_rng(seed).permutation(len(names))
    return {names[position]: i % folds for i, position in enumerate(order)}


# Risk.


@dataclass(frozen=True, slots=True, kw_only=True)
class RiskModel:
    """Fitted weights, and the mean evidence of runs that work on files or programs, and of others.
    A risk is about what is unusual for a run of its kind; how often runs fail is for the prior.
    `spread`: the factor of the evidence of words."""

    model: Model
    words: WordWeights
    spread: float
    works: float
    talks: float

    def log_odds(self, run: LabelledRun) -> Array:
        """Evidence per step that the run fails."""
        number = np.arange(1, len(run.steps.totals) + 1)
        evidence = self.features(run) + self.spread * said(self.words, run)
        return np.asarray(evidence * number / (number + EARLY_STEPS))

    def features(self, run: LabelledRun) -> Array:
        """The part of the features alone, as it was fitted."""
        average = np.where(run.steps.works_from, self.works, self.talks)
        return self.model.log_odds(run.steps.totals) - average


def said(words: WordWeights, run: LabelledRun) -> Array:
    """Evidence per step of the words of a run."""
    reader, steps = RunWords(words), zip(run.steps.words, run.steps.works_from, strict=True)
    return np.array([reader.push(own, works=bool(works)) for own, works in steps])


def fit_risk(
    runs: Sequence[LabelledRun], solve: Solve, words: FitWords = lambda runs: shipped_words()
) -> RiskModel:
    """Fit the model; a run has the weight of its steps to the power of LENGTH_POWER. Each source
    and model has its own intercept, so that a feature which only tells them apart earns no
    weight. The words that ship are a prior that nothing here changes."""
    strata = {name: i for i, name in enumerate(sorted({run.label.stratum for run in runs}))}
    lengths = [len(run.steps.totals) for run in runs]
    features = np.vstack([run.steps.totals for run in runs])
    weight = np.repeat([length ** (LENGTH_POWER - 1.0) for length in lengths], lengths)
    weight *= len(runs) / weight.sum()
    model = fit_logistic(
        features,
        np.repeat([float(run.label.failed) for run in runs], lengths),
        weight,
        ridge=RISK_RIDGE * len(runs),
        strata=np.eye(len(strata))[np.repeat([strata[run.label.stratum] for run in runs], lengths)],
        stratum_ridge=STRATUM_RIDGE,
        solve=solve,
    )
    model = replace(model, weights=RISK_SCALE * model.weights)
    works = np.repeat([run.works for run in runs], lengths)
    evidence = model.log_odds(features)
    by_run = np.repeat([1.0 / length for length in lengths], lengths)
    averages = [
        float(np.average(evidence[own], weights=by_run[own])) if own.any() else 0.0
        for own in (works, ~works)
    ]
    centred = np.split(evidence - np.where(works, *averages), np.cumsum(lengths)[:-1])
    deviation = float(np.std([own.mean() for own in centred]))
    return RiskModel(
        model=model,
        words=words(runs),
        spread=WORDS_SHARE / (1.0 - WORDS_SHARE) * deviation,
        works=averages[0],
        talks=averages[1],
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class AlarmLevels:
    """The highest evidence of solved runs of either kind, above which a run is likely to fail."""

    works: Peaks = NEVER
    talks: Peaks = NEVER

    def reached(
        self, run: LabelledRun, evidence: Array, false_alarms: float = FALSE_ALARMS
    ) -> Array:
        """Per step, whether the evidence has lasted at its level."""
        works, talks = (peaks.level(false_alarms) for peaks in (self.works, self.talks))
        level = np.where(run.steps.works_from, works, talks)
        return np.asarray(_lasting(evidence - level) >= 0.0)


def alarm_levels(runs: Sequence[LabelledRun], evidence: Sequence[Array]) -> AlarmLevels:
    """The levels by the solved runs of each kind. `evidence` per step of each run, by a model that
    never saw it."""
    works, talks = (
        Peaks.of(
            [
                float(_lasting(own).max(initial=-math.inf))
                for run, own in zip(runs, evidence, strict=True)
                if not run.label.failed and run.works == kind
            ]
        )
        for kind in (True, False)
    )
    return AlarmLevels(works=works, talks=talks)


def _lasting(values: Array) -> Array:
    """Per step, the least value of the newest LASTING_STEPS; -inf before there are so many."""
    padded = np.concatenate([np.full(LASTING_STEPS - 1, -np.inf), values])
    return np.asarray(np.lib.stride_tricks.sliding_window_view(padded, LASTING_STEPS).min(axis=1))


# The whole fit.


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """A calibration, and how each run is read by a model fitted without the run's group.
    `words`: those that the risk was fitted with; `reference`: the same runs read by the reference
    scorer and monitors."""

    calibration: Calibration
    words: WordWeights
    held_out: tuple[RunReading, ...]
    reference: tuple[RunReading, ...]


def fit(
    runs: Sequence[LabelledRun],
    *,
    seed: int = SEED,
    solve: Solve = newton,
    words: FitWords = lambda runs: shipped_words(),
) -> Fitted:
    """Fit the scorer to these runs; the same runs and seed give the same numbers. Raises
    ConfigError: too few runs or groups, or no stratum with both outcomes."""
    runs = sorted(runs, key=lambda run: (run.label.id, run.digest))
    _require_enough(runs)
    fold = folds_of((run.label.group for run in runs), FOLDS, seed)
    folds = [fold[run.label.group] for run in runs]
    models = _without_each(folds, runs, lambda others: _fit_difficulty(others, solve))
    ahead = [models[n].log_odds(run.steps.features) for run, n in zip(runs, folds, strict=True)]
    slope, intercept = _scale(ahead)
    weights, offset = _fit_difficulty(runs, solve).linear()

    risk_models = _without_each(folds, runs, lambda others: fit_risk(others, solve, words))
    evidence = [risk_models[n].log_odds(run) for run, n in zip(runs, folds, strict=True)]
    pairs = list(zip(runs, evidence, strict=True))
    levels = _without_each(
        folds, pairs, lambda rest: alarm_levels([run for run, _ in rest], [own for _, own in rest])
    )
    held_out = tuple(
        _reading(run, slope * odds + intercept, own, levels[n].reached(run, own))
        for (run, own), odds, n in zip(pairs, ahead, folds, strict=True)
    )
    risk = fit_risk(runs, solve, words)
    budgets = _budgets(runs)
    signals = (*MONITORS, *STATE_SIGNALS, RISK, ALARM)
    calibration = Calibration(
        bias=_rounded(slope * offset + intercept),
        weights=tuple([_rounded(slope * weight) for weight in weights]),
        risk=_risk_weights(risk, alarm_levels(runs, evidence)),
        budget_works=budgets[0],
        budget_talks=budgets[1],
        precision={name: round(balanced_precision(held_out, name), 3) for name in signals},
        provenance=_provenance(runs, held_out, seed),
    )
    reference = tuple(run.reference for run in runs)
    return Fitted(calibration=calibration, words=risk.words, held_out=held_out, reference=reference)


def _require_enough(runs: Sequence[LabelledRun]) -> None:
    if len(runs) < LEAST_RUNS:
        raise ConfigError(f"calibrate: {len(runs)} labelled runs, at least {LEAST_RUNS} are needed")
    failed = {run.label.stratum for run in runs if run.label.failed}
    if failed.isdisjoint(run.label.stratum for run in runs if not run.label.failed):
        raise ConfigError("calibrate: no source and model with both failed and successful runs")
    if len({run.label.group for run in runs}) < FOLDS:
        raise ConfigError(f"calibrate: fewer than {FOLDS} groups to cross-validate over")


def _without_each(
    folds: Sequence[int], rows: Sequence[Any], make: Callable[[list[Any]], _Fit]
) -> list[_Fit]:
    """Per fold, the result of `make` for the rows of all other folds."""
    return [make([row for row, n in zip(rows, folds, strict=True) if n != k]) for k in range(FOLDS)]


def _fit_difficulty(runs: Sequence[LabelledRun], solve: Solve) -> Model:
    labels = np.concatenate([trouble_ahead(run.steps.troubles) for run in runs])
    known = ~np.isnan(labels)
    features = np.vstack([run.steps.features for run in runs])[known]
    signs = [SIGNS[name] for name in FEATURES]
    weight = np.ones(len(features))
    return fit_logistic(features, labels[known], weight, ridge=RIDGE, signs=signs, solve=solve)


def _scale(ahead: Sequence[Array]) -> tuple[float, float]:
    """Slope and intercept from log odds of trouble to those of the score."""
    fsm = FSMSettings()
    hard, slow, fast = (
        math.log(chance / (1.0 - chance))
        for chance in (HARD_CHANCE, fsm.slow_threshold, fsm.fast_threshold)
    )
    easy = float(np.quantile(np.concatenate(ahead), EASY_SHARE))
    slope = (slow - fast) / max(hard - easy, LEAST_SLOPE)
    return slope, slow - slope * hard


def _reading(run: LabelledRun, odds: Array, evidence: Array, likely: Array) -> RunReading:
    """The run as the gateway would have read it with these log odds of difficulty and risk."""
    fsm = FSMSettings()
    state, history, steps = FSMState.INIT, [], []
    for index, fired in enumerate(run.steps.fired):
        works = bool(run.steps.works_from[index])
        score = settled(float(odds[index]), float(run.steps.known[index]), works=works)
        history.append(with_alarm(score, fired))
        state = next_state(state, history[-fsm.longest_window :], fsm)
        step = {"index": index, "state": state.value, "fired": fired}
        steps.append({**step, "likely_fails": bool(likely[index])})
    return RunReading(
        label=run.label,
        scores=tuple(history),
        risks=tuple([risk_of(float(each)) for each in evidence]),
        troubles=tuple(run.steps.troubles.tolist()),
        states=tuple(str(step["state"]) for step in steps),
        first=first_showings(steps),
    )


def _budgets(runs: Sequence[LabelledRun]) -> list[int]:
    """Budgets in calls, for agents that work on files and for others. BUDGET_FACTOR times the calls
    within which nearly all successful runs ended."""
    budgets = []
    for works, default in zip((True, False), DEFAULT_BUDGETS, strict=True):
        calls = [run.calls for run in runs if not run.label.failed and run.works == works]
        enough = len(calls) >= LEAST_RUNS
        most = BUDGET_FACTOR * float(np.quantile(calls, BUDGET_QUANTILE)) if enough else default
        budgets.append(math.ceil(most))
    return budgets


def _risk_weights(risk: RiskModel, levels: AlarmLevels) -> RiskWeights:
    weights, offset = risk.model.linear()
    return RiskWeights(
        weights=tuple([_rounded(weight) for weight in weights]),
        works=_rounded(risk.works - offset),
        talks=_rounded(risk.talks - offset),
        works_alarm=levels.works,
        talks_alarm=levels.talks,
        words=_rounded(risk.spread),
        early=EARLY_STEPS,
        people=shipped_calibration().risk.people,
    )


def _provenance(
    runs: Sequence[LabelledRun], held_out: Sequence[RunReading], seed: int
) -> dict[str, Any]:
    sources = Counter(run.label.source for run in runs)
    licenses = Counter(run.license or "not stated" for run in runs)
    alarm = signal_rates(held_out, ALARM)
    return {
        "data_sha256": hashlib.sha256("".join(run.digest for run in runs).encode()).hexdigest(),
        "runs": len(runs),
        "steps": sum(len(run.steps.features) for run in runs),
        "groups": len({run.label.group for run in runs}),
        "failed": sum(run.label.failed for run in runs),
        "sources": dict(sorted(sources.items())),
        "licenses": dict(sorted(licenses.items())),
        "method": {
            "folds": FOLDS,
            "seed": seed,
            "ridge": RIDGE,
            "risk_ridge": RISK_RIDGE,
            "easy_share": EASY_SHARE,
            "hard_chance": HARD_CHANCE,
        },
        "held_out": {
            "auroc": {point: str(auroc(held_out, point)) for point in POINTS},
            "alarms": {"failed": alarm.failed_count, "successful": alarm.successful_count},
        },
    }


def _rounded(value: float) -> float:
    """The value to SIGNIFICANT digits; further digits differ between processors."""
    return float(f"{value:.{SIGNIFICANT}g}")


def calibration_to_json(calibration: Calibration) -> str:
    """The text of a weights file; equal calibrations give equal bytes."""
    risk = calibration.risk
    peaks = {"works": risk.works_alarm, "talks": risk.talks_alarm}
    data = {
        "format": FORMAT,
        "bias": calibration.bias,
        "weights": dict(zip(FEATURES, calibration.weights, strict=True)),
        "risk": {
            "weights": dict(zip(RISK_FEATURES, risk.weights, strict=True)),
            "averages": {"works": risk.works, "talks": risk.talks},
            "alarms": {
                kind: to_builtins(own) if own.runs else own.largest[0]
                for kind, own in peaks.items()
                if own != NEVER
            },
            "words": risk.words,
            "early": risk.early,
            **({"people": to_builtins(risk.people)} if risk.people is not None else {}),
        },
        "budgets": {"works": calibration.budget_works, "talks": calibration.budget_talks},
        "precision": dict(calibration.precision),
        "provenance": dict(calibration.provenance),
    }
    return json.dumps(data, indent=2, ensure_ascii=False) + "\n"


def write_output(path: Path, text: str) -> None:
    """Write an output file of a command. Raises ConfigError: it cannot be written."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as exc:
        raise ConfigError(f"{path}: cannot be written: {exc.strerror}") from exc
