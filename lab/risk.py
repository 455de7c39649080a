"""Figures of risk: ranking at equal length, and calibration."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gateway.steering.scoring.calibration import WORDS_FORMAT, WordWeights
from gateway.steering.scoring.risk import NO_OUTCOMES, WorkloadPrior, risk_of
from lab.evaluation import POINTS, RunReading, auroc, step_at
from lab.signals import CODING
from lab.weights import Array

BINS = 10
ORDERS = 5
"""Random orders in which a prior is learned; the error is their mean."""
SEED = 20240917


def matched_auroc(runs: Sequence[RunReading]) -> tuple[float, int]:
    """AUROC at equal length, and the number of pairs.

    Each failed run is compared with each solved one of its source and model, both at the step at
    which the shorter one ends: a step counter has 0.5.
    """
    strata: dict[tuple[str, str], tuple[list[RunReading], list[RunReading]]] = {}
    for run in runs:
        strata.setdefault(run.label.stratum, ([], []))[not run.label.failed].append(run)
    won, pairs = 0.0, 0
    for failed, solved in strata.values():
        for one in failed:
            for other in solved:
                a, b = one.risks or one.scores, other.risks or other.scores
                at = min(len(a), len(b)) - 1
                won += (a[at] > b[at]) + 0.5 * (a[at] == b[at])
                pairs += 1
    return (won / pairs if pairs else float("nan")), pairs


def calibration_error(chances: Sequence[float] | Array, failed: Sequence[bool] | Array) -> float:
    """Mean distance of predicted and observed failures over ten bins of the prediction."""
    predicted, observed = np.asarray(chances), np.asarray(failed, dtype=np.float64)
    if not len(predicted):
        return float("nan")
    place = np.minimum((predicted * BINS).astype(int), BINS - 1)
    error = 0.0
    for number in range(BINS):
        own = place == number
        if own.any():
            error += float(own.mean()) * abs(float(predicted[own].mean() - observed[own].mean()))
    return error


def learned_risks(runs: Sequence[RunReading], order: Sequence[int]) -> list[Array]:
    """The risks with a prior learned on the fly: runs finish in `order`, by source and model.

    A source is a workload, as in the live gateway: its other models count as a few runs.
    """
    priors: dict[str, dict[str, WorkloadPrior]] = {}
    found: list[Array] = [np.zeros(0)] * len(runs)
    for number in order:
        run = runs[number]
        models = priors.setdefault(run.label.source, {})
        own = models.get(run.label.model, NO_OUTCOMES)
        prior = own.informed_by(
            known for model, known in models.items() if model != run.label.model
        )
        odds = [math.log(risk / (1.0 - risk)) for risk in run.risks]
        found[number] = np.array([risk_of(each, prior) for each in odds])
        models[run.label.model] = own.with_outcome(failed=run.label.failed)
    return found


def calibration_errors(runs: Sequence[RunReading]) -> dict[str, tuple[float, float]]:
    """Per point and for all steps: calibration error without a prior, and with a learned one."""
    runs = [run for run in runs if run.risks]
    flat = [np.array(run.risks) for run in runs]
    orders = [np.random.default_rng(SEED + n).permutation(len(runs)) for n in range(ORDERS)]
    learned = [learned_risks(runs, order.tolist()) for order in orders]
    return {
        point: (
            _error_at(runs, flat, point),
            float(np.mean([_error_at(runs, risks, point) for risks in learned])),
        )
        for point in (*POINTS, "all steps")
    }


def _error_at(runs: Sequence[RunReading], risks: Sequence[Array], point: str) -> float:
    chances: list[float] = []
    failed: list[bool] = []
    for run, risk in zip(runs, risks, strict=True):
        if point == "all steps":
            chances += risk.tolist()
            failed += [run.label.failed] * len(risk)
            continue
        at = step_at(len(risk), point)
        if at is not None:
            chances.append(float(risk[at]))
            failed.append(run.label.failed)
    return calibration_error(chances, failed)


def risk_figures(runs: Sequence[RunReading]) -> dict[str, Any]:
    """The figures of risk for the weights' provenance and the report."""
    coding = [run for run in runs if run.label.source.startswith(CODING)]
    errors = calibration_errors(runs)
    return {
        "auroc": {point: str(auroc(runs, point)) for point in POINTS},
        "matched_length": {
            "all": _rounded(matched_auroc(runs)[0]),
            "coding": _rounded(matched_auroc(coding)[0]),
        },
        "calibration_error": {
            point: {"flat": _rounded(flat), "learned": _rounded(learned)}
            for point, (flat, learned) in errors.items()
        },
    }


def _rounded(value: float) -> float | None:
    return None if math.isnan(value) else round(value, 3)


def words_to_json(words: WordWeights, provenance: Mapping[str, Any]) -> str:
    """The text of a file of words; equal weights give equal bytes."""
    data = {
        "format": WORDS_FORMAT,
        "provenance": provenance,
        "averages": {"works": words.works_average, "talks": words.talks_average},
        "unit": words.unit,
        "works": dict(sorted(words.works.items())),
        "talks": dict(sorted(words.talks.items())),
    }
    return json.dumps(data, indent=0, ensure_ascii=False) + "\n"
