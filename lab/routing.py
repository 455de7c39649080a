"""The value of acting on a signal, on scenarios that two models ran.

Of two models of one source the one with the lower success rate is the cheap one. A restart gives
the scenario to the other model when the cheap one's run shows the signal: its success then is that
of the other model's runs. Recorded runs cannot show more than that. The learned policy is decided
for each scenario by the others of its source: the cheap model is the requested one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from gateway.offline.evaluation import Estimate, RunReading, by
from gateway.offline.fitting import Array, folds_of
from gateway.offline.playback import RISK
from gateway.steering.fsm import FSMState
from gateway.steering.routing import RoutingSettings
from gateway.steering.routing_policy import WorkloadRates, begin, escalate, evidence_of
from gateway.steering.scoring.calibration import shipped_calibration
from gateway.steering.scoring.risk import LASTING_STEPS, NO_OUTCOMES, WorkloadPrior

ROUNDS = 500
SEED = 20240917
FOLDS = 10
_SIGNALS = ("SLOW", "SKIP", RISK)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPair:
    """A run of the cheap model, and all runs of a stronger one on the same scenario."""

    cheap: RunReading
    strong: tuple[RunReading, ...]

    @property
    def gain(self) -> float:
        """Success of the strong model less that of the cheap run, in [-1, 1]."""
        return float(np.mean([not run.label.failed for run in self.strong])) - (
            not self.cheap.label.failed
        )


def model_pairs(runs: Sequence[RunReading]) -> Iterator[ModelPair]:
    """Every run with every stronger model that ran its scenario."""
    success = {
        name: float(np.mean([not run.label.failed for run in own]))
        for name, own in by(runs, lambda run: f"{run.label.source} {run.label.model}").items()
    }
    for own in by(runs, lambda run: f"{run.label.source} {run.label.group}").values():
        models = by(own, lambda run: f"{run.label.source} {run.label.model}")
        for cheap in models:
            for strong in models:
                if success[strong] > success[cheap]:
                    for run in models[cheap]:
                        yield ModelPair(cheap=run, strong=tuple(models[strong]))


def left_at(pair: ModelPair, signal: str) -> float | None:
    """Share of the cheap run that is left when it first shows the signal; None if it never does."""
    at = pair.cheap.first.get(signal)
    return None if at is None else 1.0 - (at + 1) / len(pair.cheap.scores)


def left_at_risk(pair: ModelPair, least: float) -> float | None:
    """The same when its risk has been at least this for some steps in a row."""
    lasting = 0
    for at, risk in enumerate(pair.cheap.risks):
        lasting = lasting + 1 if risk >= least else 0
        if lasting == LASTING_STEPS:
            return 1.0 - (at + 1) / len(pair.cheap.risks)
    return None


def restart_value(pairs: Sequence[ModelPair], signal: str) -> Estimate:
    """Points of success that restarting at a signal gains over restarting as often by chance."""
    return escalation_value(pairs, [left_at(pair, signal) for pair in pairs])


def escalation_value(
    pairs: Sequence[ModelPair], left: Sequence[float | None], *, take_over: bool = False
) -> Estimate:
    """Points of success that escalating gains over doing it as often by chance.

    `left`: the share of each pair's cheap run that was left, in [0, 1]; None = not escalated. With
    `take_over` the stronger model continues the run: it then has its own success for the share that
    was left, the cheap run's for the rest; chance takes over at any step. The interval is a
    bootstrap over scenarios; `pairs` of the estimate is the number of escalations.
    """
    gain = np.array([pair.gain for pair in pairs])
    if not len(gain):
        return Estimate(value=float("nan"), low=float("nan"), high=float("nan"), pairs=0)
    shown = np.array([each is not None for each in left], dtype=np.float64)
    own, drawn = shown, np.ones(len(gain))
    if take_over:
        steps = np.array([len(pair.cheap.scores) for pair in pairs], dtype=np.float64)
        own, drawn = np.array([each or 0.0 for each in left]), (steps - 1.0) / (2.0 * steps)
    values = np.stack([gain * own, shown, gain * drawn])
    _, group = np.unique([pair.cheap.label.group for pair in pairs], return_inverse=True)
    draw = np.random.default_rng(SEED)
    count = int(group.max()) + 1
    samples = []
    for _ in range(ROUNDS):
        weight = np.bincount(draw.integers(0, count, count), minlength=count)[group]
        if weight.sum():
            samples.append(_over_chance(values, weight.astype(np.float64)))
    low, high = np.percentile(samples, [2.5, 97.5])
    value = _over_chance(values, np.ones(len(gain)))
    return Estimate(value=value, low=float(low), high=float(high), pairs=int(shown.sum()))


def _over_chance(values: Array, weight: Array) -> float:
    acted, shown, drawn = values @ (weight / weight.sum())
    return 100.0 * float(acted - shown * drawn)


def fast_safety(pairs: Sequence[ModelPair], signal: str = "FAST") -> tuple[float, float, int]:
    """Success of the cheap model where the strong run went FAST, elsewhere, and the first count."""
    where: list[bool] = []
    elsewhere: list[bool] = []
    for pair in pairs:
        for strong in pair.strong:
            (where if signal in strong.first else elsewhere).append(not pair.cheap.label.failed)
    rates = [float(np.mean(found)) if found else float("nan") for found in (where, elsewhere)]
    return rates[0], rates[1], len(where)


def learned_escalations(pairs: Sequence[ModelPair]) -> list[float | None]:
    """The share of each pair's cheap run that is left when it is escalated; None = never.

    1 when it is given to the stronger model as it begins.
    """
    fold = folds_of((pair.cheap.label.group for pair in pairs), FOLDS, SEED)
    known: dict[tuple[str, str, str, int], dict[str, WorkloadPrior]] = {}
    for pair in pairs:
        for number in set(range(FOLDS)) - {fold[pair.cheap.label.group]}:
            outcomes = known.setdefault((*_models(pair), number), {})
            for run in (pair.cheap, *pair.strong):
                prior = outcomes.get(run.label.model, NO_OUTCOMES)
                outcomes[run.label.model] = prior.with_outcome(failed=run.label.failed)
    return [
        _escalated(pair, known.get((*_models(pair), fold[pair.cheap.label.group]), {}))
        for pair in pairs
    ]


def _models(pair: ModelPair) -> tuple[str, str, str]:
    return pair.cheap.label.source, pair.cheap.label.model, pair.strong[0].label.model


def _escalated(pair: ModelPair, outcomes: dict[str, WorkloadPrior]) -> float | None:
    _, cheap, strong = _models(pair)
    run, regret = pair.cheap, RoutingSettings().regret
    rates = WorkloadRates(key=run.label.source, run=run.label.id, outcomes=outcomes)
    models = {cheap: 0, strong: 1}
    if begin(rates, models, cheap, regret=regret, explore=0.0).model == strong:
        return 1.0
    for at in sorted({run.first[signal] for signal in _SIGNALS if signal in run.first}):
        evidence = _evidence(run, at)
        fallback = strong if run.states[at] in ("SLOW", "SKIP") else cheap
        if escalate(rates, models, cheap, fallback, regret=regret, evidence=evidence) == strong:
            return 1.0 - (at + 1) / len(run.scores)
    return None


def _evidence(run: RunReading, at: int) -> float:
    risk = run.risks[at]
    odds = math.log(risk / (1.0 - risk))
    return evidence_of(FSMState(run.states[at]), odds, shipped_calibration().precision)
