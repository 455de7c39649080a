"""Figures of difficulty: trouble ahead, the step number, entries into states and exits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from lab.evaluation import RunReading
from lab.weights import Array, trouble_ahead

LONG_RUN = 16
FIRST_COMPARED = 8
"""Solved runs of 16 steps and more show from step 8 on whether a score follows the step number."""
TIE_DIGITS = 9
STATES = ("FAST", "SLOW", "SKIP")


def ranks(values: Sequence[float] | Array) -> Array:
    """Rank of each value from 1, ties sharing their mean."""
    given = np.asarray(values, dtype=np.float64)
    _, place, counts = np.unique(given, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return np.asarray((last - (counts - 1) / 2.0)[place], dtype=np.float64)


def area(scores: Sequence[float] | Array, labels: Sequence[float] | Array) -> float:
    """Chance that a row labelled 1 scores above one labelled 0; NaN without both."""
    positive = np.asarray(labels) > 0
    hits, misses = int(positive.sum()), int((~positive).sum())
    if not hits or not misses:
        return float("nan")
    return float((ranks(scores)[positive].sum() - hits * (hits + 1) / 2) / (hits * misses))


def trouble_auroc(runs: Sequence[RunReading], *, by_step: bool = False) -> tuple[float, float]:
    """AUROC of the score, or `by_step` of the step number, for trouble ahead.

    Over all steps of all runs, and over the pairs of steps inside one run.
    """
    scores: list[Array] = []
    labels: list[Array] = []
    inside, pairs = 0.0, 0
    for run in runs:
        ahead = trouble_ahead(run.troubles)
        known = ~np.isnan(ahead)
        # Equal steps are ties, though their scores differ in the last bit by solver and machine.
        score = np.round(np.array(range(len(ahead)) if by_step else run.scores), TIE_DIGITS)
        scores.append(score[known])
        labels.append(ahead[known])
        hits = int(ahead[known].sum())
        own = hits * (int(known.sum()) - hits)
        if own:
            inside += own * area(score[known], ahead[known])
            pairs += own
    pooled = area(np.concatenate(scores), np.concatenate(labels)) if scores else float("nan")
    return pooled, inside / pairs if pairs else float("nan")


def step_correlation(runs: Sequence[RunReading]) -> tuple[float, int]:
    """Median rank correlation of score and step number in long solved runs, and their number."""
    found = []
    for run in runs:
        scores = run.scores[FIRST_COMPARED:]
        if run.label.failed or len(run.scores) < LONG_RUN or len(set(scores)) < 2:
            continue
        found.append(float(np.corrcoef(ranks(scores), np.arange(len(scores)))[0, 1]))
    return (float(np.median(found)) if found else float("nan")), len(found)


def state_changes(runs: Sequence[RunReading]) -> dict[str, dict[str, Any]]:
    """Per state: runs that enter it, the commonest first step and its share, runs that leave it."""
    found = {}
    for state in STATES:
        entries: Counter[int] = Counter()
        left = 0
        for run in runs:
            if state in run.states:
                first = run.states.index(state)
                entries[first] += 1
                left += any(later != state for later in run.states[first:])
        entered = sum(entries.values())
        step, most = entries.most_common(1)[0] if entries else (0, 0)
        found[state] = {
            "runs": entered,
            "left": left,
            "commonest_step": step + 1 if entries else None,
            "commonest_share": round(most / entered, 3) if entered else None,
        }
    return found


def difficulty_figures(runs: Sequence[RunReading]) -> dict[str, Any]:
    """The figures of difficulty for the weights' provenance and the report."""
    pooled, inside = trouble_auroc(runs)
    steps_pooled, steps_inside = trouble_auroc(runs, by_step=True)
    correlation, long_runs = step_correlation(runs)
    rate = [label for run in runs for label in trouble_ahead(run.troubles) if label == label]
    return {
        "trouble_rate": round(float(np.mean(rate)), 3) if rate else None,
        "auroc": {"pooled": round(pooled, 3), "inside_runs": round(inside, 3)},
        "auroc_of_step_number": {
            "pooled": round(steps_pooled, 3),
            "inside_runs": round(steps_inside, 3),
        },
        "step_correlation": {"median": round(correlation, 3), "runs": long_runs},
        "states": state_changes(runs),
    }
