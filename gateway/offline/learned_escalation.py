"""When the learned policy would have escalated recorded runs, each decided by other scenarios.

The cheap model is the one that the client asked for, the stronger one the only other candidate.
What is known of both comes from the scenarios of the source that both ran, in other folds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from gateway.offline.evaluation import RunReading
from gateway.offline.playback import RISK
from gateway.offline.ridge import folds_of
from gateway.offline.routing_evidence import SEED, ModelPair
from gateway.steering.fsm import FSMState
from gateway.steering.routing import RoutingSettings
from gateway.steering.routing_policy import WorkloadRates, begin, escalate, evidence_of
from gateway.steering.scoring.calibration import shipped_calibration
from gateway.steering.scoring.risk import NO_OUTCOMES, WorkloadPrior

FOLDS = 10
_SIGNALS = ("SLOW", "SKIP", RISK)


def learned_escalations(pairs: Sequence[ModelPair]) -> list[float | None]:
    """The share of each pair's cheap run that is left when it is escalated; None = never.

    1 when it is given to the stronger model as it begins.
    """
    fold = folds_of((pair.cheap.group for pair in pairs), FOLDS, SEED)
    known: dict[tuple[str, str, str, int], dict[str, WorkloadPrior]] = {}
    for pair in pairs:
        for number in set(range(FOLDS)) - {fold[pair.cheap.group]}:
            outcomes = known.setdefault((*_models(pair), number), {})
            for run in (pair.cheap, *pair.strong):
                prior = outcomes.get(run.model, NO_OUTCOMES)
                outcomes[run.model] = prior.with_outcome(failed=run.failed)
    return [
        _escalated(pair, known.get((*_models(pair), fold[pair.cheap.group]), {})) for pair in pairs
    ]


def _models(pair: ModelPair) -> tuple[str, str, str]:
    return pair.cheap.source, pair.cheap.model, pair.strong[0].model


def _escalated(pair: ModelPair, outcomes: dict[str, WorkloadPrior]) -> float | None:
    _, cheap, strong = _models(pair)
    run, regret = pair.cheap, RoutingSettings().regret
    rates = WorkloadRates(key=run.source, run=run.id, outcomes=outcomes)
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
