"""Fitting the scorer on labelled runs, and saying honestly how far it carries.

Grouped cross-validation; a ridge logistic model with one free intercept per (source, model), so
that no weight can live on telling agents apart; signs held; weights drawn towards a small equal
share each rather than towards zero. The scale is then set on the out-of-fold index: easy is where
most successful runs pass through FAST, hard where few of them ever reach SLOW.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gateway.errors import ConfigError
from gateway.evaluation import (
    POINTS,
    RunReading,
    auroc,
    balanced_precision,
    signal_rates,
)
from gateway.playback import ALARM, STATE_SIGNALS, first_showings
from gateway.recordings import Recording, recorded_steps
from gateway.steering.calibrated import RunFeatures
from gateway.steering.calibration import FEATURES, SIGNS, Calibration
from gateway.steering.features import describe
from gateway.steering.fsm import FSMSettings, FSMState, next_state
from gateway.steering.monitors import MONITORS, MonitorSettings, make_suite
from gateway.steering.repeats import CallMemory
from gateway.steering.steps import Step, extract

FOLDS = 5
SEED = 1
RIDGE = 30.0
PRIOR_WEIGHT = 0.15
"""Where the ridge draws each standardised weight to: all features help a little."""
INTERCEPT_RIDGE = 0.05
FIRST_STEP = 3
"""Steps before it say too little to learn from."""
SLOW_SHARE = 0.015
FAST_SHARE = 0.55
"""Successful runs that may reach SLOW, and that should pass through FAST."""
BUDGET_QUANTILE = 0.98
BUDGET_FACTOR = 2.5
DEFAULT_BUDGETS = (120, 40)
SIGNIFICANT = 6
LEAST_RUNS = 20

Array = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelledRun:
    """A recording as calibration sees it: features per step, and when each monitor first fired."""

    recording: Recording
    failed: bool
    features: Array
    first: Mapping[str, int]
    calls: int
    works: bool
    digest: str

    @property
    def stratum(self) -> tuple[str, str]:
        return self.recording.source, self.recording.model


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """The calibration, and what every run would have read from a model that never saw its group."""

    calibration: Calibration
    held_out: tuple[RunReading, ...]


def label(recording: Recording) -> LabelledRun | None:
    """What calibration needs of a recording; None without an outcome or without steps."""
    steps = steps_of(recording)
    if recording.success is None or not steps:
        return None
    features, suite, memory = (
        RunFeatures(),
        make_suite(MonitorSettings(suite="robust")),
        CallMemory(),
    )
    rows, fired = [], []
    calls, works = 0, False
    for step in steps:
        facts = describe(step)
        features.push(facts)
        rows.append(features.values())
        suite.push(step)
        fired.append(suite.readings().fired)
        for action in facts.actions:
            calls += memory.observe(action).kind != "pending"
            works = works or action.changes or action.operation.startswith("$")
    return LabelledRun(
        recording=recording,
        failed=not recording.success,
        features=np.array(rows, dtype=np.float64),
        first=_first_fired(fired),
        calls=calls,
        works=works,
        digest=_digest(recording, steps),
    )


def steps_of(recording: Recording) -> tuple[Step, ...]:
    """The recording's steps, whatever form it has."""
    if recording.messages is not None:
        return extract(recording.messages)
    return recorded_steps(recording.steps or ())


def _first_fired(fired: Iterable[Sequence[str]]) -> dict[str, int]:
    first: dict[str, int] = {}
    for index, names in enumerate(fired):
        for name in names:
            first.setdefault(name, index)
    return first


def _digest(recording: Recording, steps: Sequence[Step]) -> str:
    text = repr((recording.id, recording.success, steps))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def fit(runs: Sequence[LabelledRun], *, seed: int = SEED) -> Fitted:
    """The calibration of these runs; the same runs and seed give the same numbers.

    Raises:
        ConfigError: too few runs, or no stratum with both outcomes.
    """
    runs = sorted(runs, key=lambda run: (run.recording.id, run.digest))
    _refuse_too_little(runs)
    indices = _held_out_indices(runs, seed)
    slope, intercept = _scale(runs, indices)
    weights, offset = _linear(_Model.fit(runs))
    held_out = tuple(
        _reading(run, _squash(slope * index + intercept))
        for run, index in zip(runs, indices, strict=True)
    )
    budgets = _budgets(runs)
    calibration = Calibration(
        bias=_rounded(slope * offset + intercept),
        weights=tuple([_rounded(slope * weight) for weight in weights]),
        budget_works=budgets[0],
        budget_talks=budgets[1],
        precision=_precision(held_out),
        provenance=_provenance(runs, held_out, seed),
    )
    return Fitted(calibration=calibration, held_out=held_out)


def _refuse_too_little(runs: Sequence[LabelledRun]) -> None:
    if len(runs) < LEAST_RUNS:
        raise ConfigError(f"calibrate: {len(runs)} labelled runs, at least {LEAST_RUNS} are needed")
    outcomes: dict[tuple[str, str], set[bool]] = {}
    for run in runs:
        outcomes.setdefault(run.stratum, set()).add(run.failed)
    if all(len(seen) < 2 for seen in outcomes.values()):
        raise ConfigError("calibrate: no source and model with both failed and successful runs")
    if len({run.recording.group for run in runs}) < FOLDS:
        raise ConfigError(f"calibrate: fewer than {FOLDS} groups to cross-validate over")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Model:
    mean: Array
    deviation: Array
    weights: Array

    @classmethod
    def fit(cls, runs: Sequence[LabelledRun]) -> _Model:
        strata = {name: i for i, name in enumerate(sorted({run.stratum for run in runs}))}
        rows, outcome, weight, stratum = [], [], [], []
        for run in runs:
            kept = run.features[min(FIRST_STEP, len(run.features) - 1) :]
            rows.append(kept)
            outcome += [float(run.failed)] * len(kept)
            weight += [1.0 / len(kept)] * len(kept)
            stratum += [strata[run.stratum]] * len(kept)
        x, w = np.vstack(rows), np.array(weight)
        mean = np.average(x, axis=0, weights=w)
        deviation = np.sqrt(np.average((x - mean) ** 2, axis=0, weights=w)) + 1e-9
        own = np.eye(len(strata))[np.array(stratum)]
        signs = np.array([SIGNS[name] for name in FEATURES], dtype=np.float64)
        weights = _logistic((x - mean) / deviation * signs, np.array(outcome), w, own)
        return cls(mean=mean, deviation=deviation, weights=weights * signs)

    def index(self, features: Array) -> Array:
        return np.asarray(((features - self.mean) / self.deviation) @ self.weights)


def _logistic(x: Array, y: Array, w: Array, own: Array) -> Array:
    """Ridge weights towards the prior, none below zero: a feature that wants to be is left out."""
    kept = np.ones(x.shape[1], dtype=bool)
    while True:
        weights = np.zeros(x.shape[1])
        weights[kept] = _newton(x[:, kept], y, w, own)
        wrong = kept & (weights < 0)
        if not wrong.any():
            return weights
        kept &= ~wrong


def _newton(x: Array, y: Array, w: Array, own: Array) -> Array:
    design = np.hstack([x, own])
    count = x.shape[1]
    target = np.concatenate([np.full(count, PRIOR_WEIGHT), np.zeros(own.shape[1])])
    ridge = np.concatenate([np.full(count, RIDGE), np.full(own.shape[1], INTERCEPT_RIDGE)])
    beta = target.copy()
    for _ in range(50):
        chance = _squash(design @ beta)
        gradient = design.T @ (w * (chance - y)) + ridge * (beta - target)
        curvature = (design * (w * chance * (1 - chance))[:, None]).T @ design + np.diag(ridge)
        step = np.linalg.solve(curvature, gradient)
        beta = beta - step
        if np.abs(step).max() < 1e-8:
            break
    return np.asarray(beta[:count])


def _squash(value: Array) -> Array:
    return np.asarray(1.0 / (1.0 + np.exp(-np.clip(value, -30.0, 30.0))))


def folds_of(groups: Iterable[str], seed: int) -> dict[str, int]:
    """Each group's fold, the same for the same groups and seed."""
    names = sorted(set(groups))
    order = np.random.default_rng(seed).permutation(len(names))
    return {names[position]: i % FOLDS for i, position in enumerate(order)}


def _held_out_indices(runs: Sequence[LabelledRun], seed: int) -> list[Array]:
    fold = folds_of((run.recording.group for run in runs), seed)
    models = [
        _Model.fit([run for run in runs if fold[run.recording.group] != k]) for k in range(FOLDS)
    ]
    return [models[fold[run.recording.group]].index(run.features) for run in runs]


def _linear(model: _Model) -> tuple[Array, float]:
    weights = model.weights / model.deviation
    return weights, -float(model.mean @ weights)


def _scale(runs: Sequence[LabelledRun], indices: Sequence[Array]) -> tuple[float, float]:
    """Slope and intercept of the log odds that put the two lines of the index on 0.2 and 0.6."""
    fsm = FSMSettings()
    fine = [index for run, index in zip(runs, indices, strict=True) if not run.failed]
    peaks = np.array([_sustained(index, fsm.slow_window) for index in fine])
    lows = np.array([-_sustained(-index, fsm.fast_window) for index in fine])
    hard = float(np.quantile(peaks, 1.0 - SLOW_SHARE))
    easy = float(np.quantile(lows, FAST_SHARE))
    hard = hard if math.isfinite(hard) else easy + 1.0
    easy = easy if math.isfinite(easy) else hard - 1.0
    high, low = _logit(fsm.slow_threshold), _logit(fsm.fast_threshold)
    slope = (high - low) / max(hard - easy, 0.1)
    return slope, high - slope * hard


def _sustained(index: Array, window: int) -> float:
    """The highest value that the index stayed above for a whole window; -inf for a short run."""
    if len(index) < window:
        return -math.inf
    return float(np.lib.stride_tricks.sliding_window_view(index, window).min(axis=1).max())


def _logit(chance: float) -> float:
    return math.log(chance / (1.0 - chance))


def _reading(run: LabelledRun, scores: Array) -> RunReading:
    fsm = FSMSettings()
    state, history, steps = FSMState.INIT, [], []
    for index, score in enumerate(scores):
        history.append(float(score))
        state = next_state(state, history[-fsm.longest_window :], fsm)
        steps.append({"index": index, "state": state.value, "fired": ()})
    first = {**first_showings(steps), **run.first}
    alarms = [first[name] for name in (*MONITORS, "SLOW", "SKIP") if name in first]
    if alarms:
        first[ALARM] = min(alarms)
    recording = run.recording
    return RunReading(
        id=recording.id,
        source=recording.source,
        model=recording.model,
        group=recording.group,
        failed=run.failed,
        scores=tuple(history),
        first=first,
        mistake_step=recording.mistake_step,
    )


def _budgets(runs: Sequence[LabelledRun]) -> tuple[int, int]:
    """2.5 times the calls within which nearly all successful runs ended, by kind of agent."""
    learned = []
    for works, default in zip((True, False), DEFAULT_BUDGETS, strict=True):
        calls = [run.calls for run in runs if not run.failed and run.works == works]
        if len(calls) < LEAST_RUNS:
            learned.append(default)
        else:
            learned.append(math.ceil(BUDGET_FACTOR * float(np.quantile(calls, BUDGET_QUANTILE))))
    return learned[0], learned[1]


def _precision(held_out: Sequence[RunReading]) -> dict[str, float]:
    signals = (*MONITORS, *STATE_SIGNALS, ALARM)
    return {name: round(balanced_precision(held_out, name), 3) for name in signals}


def _provenance(
    runs: Sequence[LabelledRun], held_out: Sequence[RunReading], seed: int
) -> dict[str, Any]:
    figures = {point: str(auroc(held_out, point)) for point in POINTS}
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
            "prior_weight": PRIOR_WEIGHT,
            "slow_share": SLOW_SHARE,
            "fast_share": FAST_SHARE,
        },
        "held_out": {
            "auroc": figures,
            "alarms": {"failed": alarm.failed_count, "successful": alarm.fine_count},
        },
    }


def _counted(runs: Sequence[LabelledRun], key: Callable[[LabelledRun], str]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for run in runs:
        counts[key(run)] = counts.get(key(run), 0) + 1
    return dict(sorted(counts.items()))


def _rounded(value: float) -> float:
    """Six significant digits: what differs beyond them differs between processors."""
    return float(f"{value:.{SIGNIFICANT}g}")
