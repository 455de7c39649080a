"""Fits the scorer and the risk to recorded runs, and reads each run with models of other runs.

Difficulty is a ridge logistic regression of trouble ahead (`trouble`) on the newest stretch, with
fixed signs. Cross-validation keeps each group of runs in one fold; the scale is set on the
out-of-fold log odds.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gateway.errors import ConfigError
from gateway.offline.difficulty_evidence import difficulty_figures
from gateway.offline.evaluation import (
    POINTS,
    RunReading,
    auroc,
    balanced_precision,
    signal_rates,
)
from gateway.offline.labelled_runs import LabelledRun
from gateway.offline.playback import ALARM, RISK, STATE_SIGNALS, first_showings
from gateway.offline.ridge import Array, Model, fit_logistic, folds_of
from gateway.offline.risk_evidence import risk_figures
from gateway.offline.risk_fitting import RIDGE as RISK_RIDGE
from gateway.offline.risk_fitting import AlarmLevels, RiskModel, fit_risk, held_out_risk
from gateway.offline.trouble import trouble_ahead
from gateway.steering.fsm import FSMSettings, FSMState, next_state
from gateway.steering.monitors import MONITORS
from gateway.steering.monitors.suite import with_alarm
from gateway.steering.scoring.calibrated import settled
from gateway.steering.scoring.calibration import FEATURES, SIGNS, Calibration, RiskWeights
from gateway.steering.scoring.risk import risk_of

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
    ahead = _held_out(runs, seed)
    slope, intercept = _scale(ahead)
    weights, offset = _fit_difficulty(runs).linear()
    risk, risks = fit_risk(runs), held_out_risk(runs, FOLDS, seed)
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


def _fit_difficulty(runs: Sequence[LabelledRun]) -> Model:
    labels = np.concatenate([trouble_ahead(run.troubles) for run in runs])
    known = ~np.isnan(labels)
    features = np.vstack([run.features for run in runs])[known]
    signs = [SIGNS[name] for name in FEATURES]
    return fit_logistic(features, labels[known], np.ones(len(features)), ridge=RIDGE, signs=signs)


def _held_out(runs: Sequence[LabelledRun], seed: int) -> list[Array]:
    """Log odds of trouble ahead, each run's by a model that never saw its group."""
    fold = folds_of((run.recording.group for run in runs), FOLDS, seed)
    models = [
        _fit_difficulty([r for r in runs if fold[r.recording.group] != k]) for k in range(FOLDS)
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
            "difficulty": difficulty_figures(held_out),
            "risk": risk_figures(held_out),
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
