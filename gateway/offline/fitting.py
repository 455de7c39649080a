"""Fits the calibrated scorer to labelled runs, and reads each run with a model of other runs.

The model is a ridge logistic regression with one intercept per (source, model), so that no weight
is earned by recognising the agent; each weight keeps its expected sign and is drawn towards a small
positive value, not towards zero. Cross-validation keeps each group of runs in one fold. The scale
is set on the out-of-fold index: most successful runs pass through FAST, few of them reach SLOW.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gateway.errors import ConfigError
from gateway.offline.evaluation import (
    POINTS,
    RunReading,
    auroc,
    balanced_precision,
    signal_rates,
)
from gateway.offline.labelled_runs import LabelledRun
from gateway.offline.playback import ALARM, STATE_SIGNALS, first_showings
from gateway.offline.ridge import (
    PRIOR_WEIGHT,
    RIDGE,
    Array,
    Example,
    Model,
    ScaleTarget,
    fit_model,
    fit_scale,
    folds_of,
    squash,
)
from gateway.steering.fsm import FSMSettings, FSMState, next_state
from gateway.steering.monitors import MONITORS
from gateway.steering.scoring.calibration import FEATURES, SIGNS, Calibration

FOLDS = 5
SEED = 1
SLOW_SHARE = 0.01
FAST_SHARE = 0.55
"""Share of the successful runs that may reach SLOW, and that should pass through FAST."""
BUDGET_QUANTILE = 0.98
BUDGET_FACTOR = 4.0
DEFAULT_BUDGETS = (190, 60)
SIGNIFICANT = 6
LEAST_RUNS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """A calibration, and how each run is read by a model fitted without the run's group.

    `reference`: the same runs read by the reference scorer and monitors.
    """

    calibration: Calibration
    held_out: tuple[RunReading, ...]
    reference: tuple[RunReading, ...]


def fit(runs: Sequence[LabelledRun], *, seed: int = SEED) -> Fitted:
    """Fit the scorer to these runs; the same runs and seed give the same numbers.

    Raises:
        ConfigError: too few runs or groups, or no stratum with both outcomes.
    """
    runs = sorted(runs, key=lambda run: (run.recording.id, run.digest))
    _require_enough(runs)
    indices = _held_out_indices(runs, seed)
    slope, intercept = _scale(runs, indices)
    weights, offset = _fit(runs).linear()
    held_out = tuple(
        _reading(run, squash(slope * index + intercept))
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


def _example(run: LabelledRun) -> Example:
    return Example(features=run.features, failed=run.failed, stratum=run.stratum)


def _fit(runs: Iterable[LabelledRun]) -> Model:
    return fit_model([_example(run) for run in runs], [SIGNS[name] for name in FEATURES])


def _held_out_indices(runs: Sequence[LabelledRun], seed: int) -> list[Array]:
    fold = folds_of((run.recording.group for run in runs), FOLDS, seed)
    models = [_fit([r for r in runs if fold[r.recording.group] != k]) for k in range(FOLDS)]
    return [models[fold[run.recording.group]].index(run.features) for run in runs]


def _scale(runs: Sequence[LabelledRun], indices: Sequence[Array]) -> tuple[float, float]:
    fsm = FSMSettings()
    successful = [index for run, index in zip(runs, indices, strict=True) if not run.failed]
    return fit_scale(
        successful,
        hard=ScaleTarget(score=fsm.slow_threshold, window=fsm.slow_window, share=SLOW_SHARE),
        easy=ScaleTarget(score=fsm.fast_threshold, window=fsm.fast_window, share=FAST_SHARE),
    )


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
    signals = (*MONITORS, *STATE_SIGNALS, ALARM)
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
            "prior_weight": PRIOR_WEIGHT,
            "slow_share": SLOW_SHARE,
            "fast_share": FAST_SHARE,
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
