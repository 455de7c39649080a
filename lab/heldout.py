"""Risk judged so that it cannot flatter: `python -m lab heldout`; and the fit of its words.

Everything is fitted to the training runs of each fold: outer folds hold out scenario groups, whole
sources, or all runs of one model. Labels that are permuted within source and model show what the
procedure finds where there is nothing to find. The features were chosen while all of these runs
were looked at, which no fold undoes: they look better here than they are.
"""

from __future__ import annotations

import itertools
import math
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from rich.console import Console
from rich.table import Table

from gateway.learning.own_risk import newton
from gateway.steering.scoring.calibration import WordWeights
from gateway.steering.scoring.risk import FEW_DIFFERENT, risk_of
from lab.calibrate import read_labelled
from lab.evaluation import RunReading, auroc, step_at
from lab.risk import matched_auroc
from lab.signals import CODING
from lab.weights import FOLDS, SEED, Array, LabelledRun, RiskModel, fit_risk, folds_of, said

LEAST_GROUPS = 10  # tasks in which a word has to occur: fewer are names
LEAST_SOURCES = 2  # sources in which it has to occur: one has its own projects, goods and places
MOST_WORDS = 300  # of each kind: those with the largest weights
MOST_UNITS = 127  # of the largest weight
SMALLEST = 1e-9
DIGITS = 6
POINTS = ("end", "half", "30 steps", "20 steps", "10 steps", "5 steps", "3 steps")
CALIBRATED_AT = ("end", "half", "10 steps", "5 steps")
FALSE_ALARMS = 0.05
TALKS = "tau-"  # prefix of the sources that are dialogues
ROUNDS = 30

Folds = Sequence[tuple[Sequence[int], Sequence[int]]]
"""The training runs and the runs that are judged, of each fold."""
Read = Callable[[RiskModel, LabelledRun], Array]
READ: Mapping[str, Read] = {
    "risk": RiskModel.log_odds,
    "features": RiskModel.features,
    "words": lambda model, run: said(model.words, run),
}


# The fit of words.


def fit_words(runs: Sequence[LabelledRun]) -> WordWeights:
    """The weights by these runs; the mean evidence of the runs of each kind has the deviation 1."""
    sources: dict[str, set[str]] = defaultdict(set)
    for run in runs:
        for word in frozenset().union(*run.steps.words):
            sources[word].add(run.label.source)
    known = {word for word, own in sources.items() if len(own) >= LEAST_SOURCES}
    kinds = [[run for run in runs if run.works == works] for works in (True, False)]
    fitted = [_fit_kind(own, known) for own in kinds]
    largest = max((abs(weight) for own in fitted for weight in own.values()), default=0.0)
    unit = float(f"{largest / MOST_UNITS or 1.0:.4g}")
    works, talks = (
        {word: level for word, weight in own.items() if (level := round(weight / unit))}
        for own in fitted
    )
    plain = WordWeights(works=works, talks=talks, unit=unit)
    averages = [
        round(float(np.mean([said(plain, run).mean() for run in own])), DIGITS) if own else 0.0
        for own in kinds
    ]
    return WordWeights(
        works=works, talks=talks, unit=unit, works_average=averages[0], talks_average=averages[1]
    )


def _fit_kind(runs: Sequence[LabelledRun], known: set[str]) -> dict[str, float]:
    """How much more of each word failed runs say than solved ones of their source and model, in
    its deviations there: a word that only tells agents apart earns nothing."""
    groups: dict[str, set[str]] = defaultdict(set)
    for run in runs:
        for word in known.intersection(itertools.chain.from_iterable(run.steps.words)):
            groups[word].add(run.label.group)
    words = sorted(word for word, own in groups.items() if len(own) >= LEAST_GROUPS)
    place = {word: number for number, word in enumerate(words)}
    rows = np.zeros((len(runs), len(words)))
    strata: dict[tuple[str, str], list[int]] = defaultdict(list)
    for number, run in enumerate(runs):
        strata[run.label.stratum].append(number)
        for own in run.steps.words:
            columns = [place[word] for word in own if word in place]
            rows[number, columns] += (
                1.0 / math.sqrt(len(own) + FEW_DIFFERENT) / len(run.steps.words)
            )
    failed = np.array([run.label.failed for run in runs], dtype=bool)
    difference, variance = np.zeros(len(words)), np.zeros(len(words))
    for numbers in strata.values():
        said_by, lost = rows[numbers], failed[numbers]
        if 0 < (count := int(lost.sum())) < len(lost):
            weight = count * (len(lost) - count) / len(lost)
            difference += weight * (said_by[lost].mean(axis=0) - said_by[~lost].mean(axis=0))
            variance += weight * said_by.var(axis=0)
    deviation = np.sqrt(variance)
    if not deviation.any():
        return {}
    weights = difference / (deviation + np.median(deviation))
    largest = np.argsort(-np.abs(weights), kind="stable")[:MOST_WORDS]
    scale = float((rows[:, largest] @ weights[largest]).std()) + SMALLEST
    return {words[n]: float(weights[n]) / scale for n in largest}


# The judgement.


def by_key(keys: Sequence[Any]) -> Folds:
    """One fold per key: the other runs, and those that have it."""
    return [
        (
            [n for n, own in enumerate(keys) if own != key],
            [n for n, own in enumerate(keys) if own == key],
        )
        for key in sorted(set(keys))
    ]


def splits(runs: Sequence[LabelledRun]) -> dict[str, Folds]:
    """The folds of each reading."""
    fold = folds_of((run.label.group for run in runs), FOLDS, SEED)
    return {
        "groups": by_key([fold[run.label.group] for run in runs]),
        "sources": by_key([run.label.source for run in runs]),
        "models": by_key([run.label.model for run in runs]),
    }


def held_out(runs: Sequence[LabelledRun], folds: Folds) -> dict[str, list[RunReading]]:
    """Each of READ, of runs that its model never saw."""
    found: dict[str, list[RunReading]] = {name: [] for name in READ}
    for training, judged in folds:
        model = fit_risk([runs[n] for n in training], newton, fit_words)
        for (name, read), run in itertools.product(READ.items(), [runs[n] for n in judged]):
            odds = tuple(map(float, read(model, run)))
            reading = RunReading(
                label=run.label, scores=odds, risks=tuple(map(risk_of, odds)), first={}
            )
            found[name].append(reading)
    return found


def run_heldout(
    files: Sequence[Path], *, out: TextIO | None = None, err: TextIO | None = None
) -> int:
    """Print the figures of each reading.

    Returns the exit status: 0 done, 1 some recordings could not be read and were left out.
    """
    out, err = out or sys.stdout, err or sys.stderr
    labelled, problems = read_labelled(files, err)
    runs = sorted(labelled, key=lambda run: (run.label.id, run.digest))
    columns: dict[str, list[RunReading]] = {}
    for name, folds in splits(runs).items():
        columns |= {f"{read}, {name}": own for read, own in held_out(runs, folds).items()}
    noise = permuted(runs)
    columns["permuted, groups"] = held_out(noise, splits(noise)["groups"])["risk"]
    console = Console(file=out, width=None if out.isatty() else 240, highlight=False)
    console.print(figures(columns))
    return 1 if problems else 0


def prefixes(runs: Sequence[RunReading], points: Sequence[str]) -> tuple[Array, Array, Array]:
    """Per run and point: the evidence, whether the run failed, and the log odds of the rate at
    which its source and model fails."""
    rates: dict[tuple[str, str], list[bool]] = defaultdict(list)
    for run in runs:
        rates[run.label.stratum].append(run.label.failed)
    rows = []
    for run in runs:
        known = rates[run.label.stratum]
        rate = (sum(known) + 1.0) / (len(known) + 2.0)
        places = [step_at(len(run.risks), point) for point in points]
        odds = [math.log(run.risks[at] / (1.0 - run.risks[at])) for at in places if at is not None]
        rows += [(each, run.label.failed, math.log(rate / (1.0 - rate))) for each in odds]
    x, y, offset = np.array(rows, dtype=np.float64).reshape(-1, 3).T
    return x, y, offset


def best_slope(x: Array, y: Array, offset: Array) -> float:
    """The factor of the evidence with the least log loss; 1 = it says what it means."""
    slope = 0.5
    for _ in range(ROUNDS):
        chance = 1.0 / (1.0 + np.exp(-np.clip(offset + slope * x, -30.0, 30.0)))
        curvature = float((x * x * chance * (1 - chance)).sum()) + SMALLEST
        slope -= float((x * (chance - y)).sum()) / curvature
    return slope


def log_loss(odds: Array, y: Array) -> float:
    """Mean loss in bits."""
    return float(np.mean(np.logaddexp(0.0, odds) - y * odds)) / math.log(2.0)


def permuted(runs: Sequence[LabelledRun]) -> list[LabelledRun]:
    """The runs with the outcomes of each source and model in another order."""
    draw = np.random.default_rng(SEED)
    places: dict[tuple[str, str], list[int]] = defaultdict(list)
    for number, run in enumerate(runs):
        places[run.label.stratum].append(number)
    found = [*runs]
    for own in places.values():
        for number, other in zip(own, draw.permutation(own), strict=True):
            label = replace(runs[number].label, success=runs[other].label.success)
            found[number] = replace(runs[number], label=label)
    return found


def figures(columns: Mapping[str, Sequence[RunReading]]) -> Table:
    """One column per reading."""
    table = Table(title="risk, held out; AUROC within source and model", title_justify="left")
    table.add_column("")
    for name in columns:
        table.add_column(name, justify="right")

    def row(name: str, value: Callable[[Sequence[RunReading]], str]) -> None:
        table.add_row(name, *map(value, columns.values()))

    for point in POINTS:
        row(point, partial(_auroc, point=point))
    for name, prefix in {"": "", ", coding": CODING, ", dialogues": TALKS}.items():
        row(f"equal length{name}", partial(_matched, prefix=prefix))
    for name, value in (
        ("slope", _slope),
        ("bits over the base rate", _gain),
        ("recall at 5 % false alarms", _recall),
    ):
        for point in CALIBRATED_AT:
            row(f"{name}, {point}", partial(value, point=point))
    return table


def _auroc(runs: Sequence[RunReading], point: str) -> str:
    return str(auroc(runs, point))


def _matched(runs: Sequence[RunReading], prefix: str) -> str:
    own = [run for run in runs if run.label.source.startswith(prefix)]
    return f"{matched_auroc(own)[0]:.3f}"


def _slope(runs: Sequence[RunReading], point: str) -> str:
    return f"{best_slope(*prefixes(runs, [point])):.2f}"


def _gain(runs: Sequence[RunReading], point: str) -> str:
    """Bits per run that the evidence saves where the rate of source and model is known."""
    x, y, offset = prefixes(runs, [point])
    return f"{log_loss(offset, y) - log_loss(offset + x, y):+.3f}"


def _recall(runs: Sequence[RunReading], point: str) -> str:
    """Share of the failed runs above a level that few solved runs of other tasks exceed, and the
    share of the solved runs that do."""
    fold = folds_of((run.label.group for run in runs), FOLDS, SEED)
    shown: dict[bool, list[bool]] = {True: [], False: []}
    for number, coding in itertools.product(range(FOLDS), (True, False)):
        own = [
            (run.label, value, fold[run.label.group] == number)
            for run in runs
            if run.label.source.startswith(CODING) == coding
            and (value := _at(run, point)) is not None
        ]
        known = [value for label, value, judged in own if not (judged or label.failed)]
        level = float(np.quantile(known, 1.0 - FALSE_ALARMS)) if known else math.inf
        for label, value, judged in own:
            if judged:
                shown[label.failed].append(value > level)
    failed, solved = (np.mean(shown[side]) if shown[side] else math.nan for side in (True, False))
    return f"{failed:.3f} ({solved:.3f})"


def _at(run: RunReading, point: str) -> float | None:
    at = step_at(len(run.risks), point)
    return None if at is None else run.risks[at]
