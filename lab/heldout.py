"""Risk judged so that it cannot flatter: `python -m lab heldout`.

Every constant of the words is chosen in inner folds of the training runs. Outer folds hold out
scenario groups, whole sources, or all runs of one model. Labels that are permuted within source and
model show what the procedure finds where there is nothing to find. The list of features was made
while all of these runs were looked at, which no fold undoes: the features look better here than
they are, so the words get at least half of their spread whatever the folds say.
"""

from __future__ import annotations

import itertools
import math
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from rich.console import Console
from rich.table import Table
from scipy import sparse
from sklearn.linear_model import LogisticRegression

from gateway.learning.own_risk import newton
from gateway.offline.calibrate import read_labelled
from gateway.offline.evaluation import CODING, RunReading, auroc, step_at
from gateway.offline.fitting import FOLDS, SEED, Array, FitWords, LabelledRun, fit_risk, folds_of
from gateway.steering.scoring.calibration import WordWeights
from gateway.steering.scoring.risk import FEW_PAIRS, risk_of
from lab.risk import matched_auroc

INNER_FOLDS = 3
LEAST_GROUPS = (5, 10)  # tasks in which a pair has to occur: fewer are names of files
LEAST_SOURCES = 2  # sources in which it has to occur: one has its own projects, goods and places
PENALTIES = (3.0, 10.0)
WINDOWS = (3, 5)
SPREADS = (0.5, 1.0)  # of the evidence of words, in that of the features
EARLY = (0.0, 2.0, 4.0, 8.0)
POINTS = ("end", "half", "30 steps", "20 steps", "10 steps", "5 steps", "3 steps")
CHOSEN_BY = ("end", "half", "10 steps", "5 steps")
FALSE_ALARMS = 0.05
TALKS = "tau-"  # prefix of the sources that are dialogues
MOST_UNITS = 127  # of the largest weight
MOST_PAIRS = 2500  # of each kind that ship: those with the largest weights
STRATUM_SCALE = 5.0  # of the intercepts' columns, so that they are hardly penalised
SMALLEST = 1e-9
DIGITS = 6
ROUNDS = 30

Pair = tuple[str, str]
Evidence = Mapping[int, Array]
Folds = Sequence[tuple[Sequence[int], Sequence[int]]]
"""The training runs and the runs that are judged, of each fold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The constants of a fit: the inverse penalty of the words, the tasks in which each has to
    occur, their window, their spread, and the steps after which half of the evidence counts."""

    penalty: float
    groups: int
    window: int
    spread: float = 1.0
    early: float = 0.0


class Words:
    """The runs' words as a matrix: one row per step, one column per pair of enough tasks."""

    def __init__(self, runs: Sequence[LabelledRun]) -> None:
        self.runs = runs
        self.lengths = np.array([len(run.steps.letters) for run in runs])
        self.starts = np.concatenate([[0], np.cumsum(self.lengths)])
        said = [[{*itertools.pairwise(letters)} for letters in run.steps.letters] for run in runs]
        groups: dict[Pair, set[str]] = defaultdict(set)
        for run, steps in zip(runs, said, strict=True):
            for pair in set().union(*steps):
                groups[pair].add(run.label.group)
        self.pairs = sorted(pair for pair, own in groups.items() if len(own) >= min(LEAST_GROUPS))
        column = {pair: number for number, pair in enumerate(self.pairs)}
        rows, columns, values = [], [], []
        for row, pairs in enumerate(itertools.chain.from_iterable(said)):
            known = [column[pair] for pair in sorted(pairs) if pair in column]
            rows += [row] * len(known)
            columns += known
            values += [1.0 / math.sqrt(len(pairs) + FEW_PAIRS)] * len(known)
        shape = (int(self.starts[-1]), len(self.pairs))
        self.steps = sparse.csr_matrix((values, (rows, columns)), shape=shape)
        self.windowed = {size: self._over(size) for size in WINDOWS}

    def _over(self, size: int) -> Any:
        """The mean over the newest steps of each run."""
        rows, columns, values = [], [], []
        for length, start in zip(self.lengths, self.starts, strict=False):
            for at in range(length):
                newest = range(max(0, at - size + 1), at + 1)
                rows += [start + at] * len(newest)
                columns += [start + other for other in newest]
                values += [1.0 / len(newest)] * len(newest)
        count = int(self.starts[-1])
        mean = sparse.csr_matrix((values, (rows, columns)), shape=(count, count))
        return (mean @ self.steps).tocsr()

    def rows(self, numbers: Iterable[int]) -> Array:
        """The rows of these runs."""
        parts = [np.arange(self.starts[n], self.starts[n + 1]) for n in numbers]
        return np.concatenate(parts) if parts else np.zeros(0, dtype=int)

    def spread(self, numbers: Sequence[int], key: Callable[[LabelledRun], str]) -> Array:
        """In how many groups of these runs each pair occurs."""
        keys = [key(self.runs[n]) for n in numbers]
        place = {name: at for at, name in enumerate(sorted(set(keys)))}
        owner = np.repeat([place[name] for name in keys], self.lengths[list(numbers)])
        rows = self.rows(numbers)
        count = (np.ones(len(rows)), (owner, np.arange(len(rows))))
        grouped = sparse.csr_matrix(count, shape=(len(place), len(rows))) @ self.steps[rows]
        return np.asarray(np.diff(grouped.tocsc().indptr))

    def fit(self, training: Sequence[int], choice: Choice, *, works: bool) -> Array:
        """A weight per pair for the runs of a kind. Within each source and model failed and solved
        runs weigh the same, so a pair that only tells agents apart earns nothing; sources of one
        outcome do not count."""
        numbers = [n for n in training if self.runs[n].works == works]
        weights = np.zeros(len(self.pairs))
        strata: dict[tuple[str, str], list[int]] = defaultdict(list)
        for number in numbers:
            strata[self.runs[number].label.stratum].append(number)
        kept, weight, stratum = [], [], []
        for at, own in enumerate(strata.values()):
            failed = np.array([self.runs[n].label.failed for n in own])
            mass = np.sqrt(self.lengths[own])
            sides = mass[failed].sum(), mass[~failed].sum()
            if min(sides) > 0:
                level = 2 * sides[0] * sides[1] / sum(sides)
                kept += own
                side = np.where(failed, *sides)
                weight += list(level / side / mass)
                stratum += [at] * len(own)
        if not kept:
            return weights
        common = self.spread(numbers, lambda run: run.label.group) >= choice.groups
        common &= self.spread(training, lambda run: run.label.source) >= LEAST_SOURCES
        lengths, rows, columns = self.lengths[kept], self.rows(kept), np.flatnonzero(common)
        rate = np.repeat(weight, lengths)
        agents = (np.arange(len(rows)), np.repeat(stratum, lengths))
        own_mean = sparse.csr_matrix((np.full(len(rows), STRATUM_SCALE), agents))
        design = sparse.hstack([self.windowed[choice.window][rows][:, columns], own_mean]).tocsr()
        failed_runs = np.array([self.runs[n].label.failed for n in kept])
        model = LogisticRegression(
            C=choice.penalty, fit_intercept=False, solver="liblinear", tol=1e-3, random_state=SEED
        )
        model.fit(design, np.repeat(failed_runs, lengths), rate * len(kept) / rate.sum())
        found = model.coef_[0][: len(columns)]
        largest = np.argsort(-np.abs(found), kind="stable")[:MOST_PAIRS]
        weights[columns[largest]] = found[largest]
        return weights

    def evidence(self, weights: Array, numbers: Sequence[int], window: int) -> Evidence:
        """The evidence per step of each run."""
        total = self.windowed[window] @ weights
        return {n: total[self.starts[n] : self.starts[n + 1]] for n in numbers}


class Study:
    """One evaluation: the runs with their labels, read by models that never saw them."""

    def __init__(self, words: Words) -> None:
        self.words, self.runs = words, words.runs

    def held_out(self, folds: Folds) -> Evidence:
        """Evidence of the runs of each fold by models of the others; constants by inner folds."""
        found: dict[int, Array] = {}
        for training, judged in folds:
            for works in (True, False):
                own = [n for n in judged if self.runs[n].works == works]
                if own and any(self.runs[n].works == works for n in training):
                    found |= self._judge(training, own, works=works)
        return found

    def features_alone(self, folds: Folds) -> Evidence:
        """The same of the features, without words."""
        found: dict[int, Array] = {}
        for training, judged in folds:
            found |= self._features(training, judged)
        return found

    def _judge(self, training: Sequence[int], judged: Sequence[int], *, works: bool) -> Evidence:
        choice, scale = self.choose(training, works=works)
        words = self._words(training, judged, choice, works=works)
        return blend(self._features(training, judged), words, scale, choice.early)

    def choose(self, training: Sequence[int], *, works: bool) -> tuple[Choice, float]:
        """The constants that are best in inner folds, and the factor that gives the evidence of
        words its spread there."""
        fold = folds_of((self.runs[n].label.group for n in training), INNER_FOLDS, SEED)
        inner = by_key([fold[self.runs[n].label.group] for n in training])
        parts = [([training[n] for n in rest], [training[n] for n in own]) for rest, own in inner]
        kind = [(rest, [n for n in own if self.runs[n].works == works]) for rest, own in parts]
        features: dict[int, Array] = {}
        for rest, own in kind:
            features |= self._features(rest, own)
        tried = []
        for penalty, groups, window in itertools.product(PENALTIES, LEAST_GROUPS, WINDOWS):
            choice = Choice(penalty=penalty, groups=groups, window=window)
            words: dict[int, Array] = {}
            for rest, own in kind:
                words |= self._words(rest, own, choice, works=works)
            for spread in SPREADS:
                scale = spread * _deviation(features) / (_deviation(words) + SMALLEST)
                value = self.quality(blend(features, words, scale, 0.0))
                tried.append((value, replace(choice, spread=spread), words, scale))
        _, choice, words, scale = max(tried, key=lambda each: each[0])
        losses = [self._loss(blend(features, words, scale, early)) for early in EARLY]
        return replace(choice, early=EARLY[int(np.argmin(losses))]), scale

    def ship(self, training: Sequence[int]) -> WordWeights:
        """The weights by these runs, the constants by inner folds of them."""
        choices, pairs, averages = {}, {}, {}
        for kind, works in (("works", True), ("talks", False)):
            own = [n for n in training if self.runs[n].works == works]
            choice, scale = self.choose(training, works=works)
            weights = self.words.fit(training, choice, works=works)
            pairs[kind] = weights * scale
            averages[kind] = round(
                _mean(self.words.evidence(weights, own, choice.window)) * scale, DIGITS
            )
            choices[kind] = choice
        largest = max(float(np.abs(own).max(initial=0.0)) for own in pairs.values())
        unit = float(f"{largest / MOST_UNITS or 1.0:.4g}")
        levels = {
            kind: {self.words.pairs[n]: int(units[n]) for n in np.flatnonzero(units)}
            for kind, units in ((kind, np.round(own / unit)) for kind, own in pairs.items())
        }
        return WordWeights(
            works=levels["works"],
            talks=levels["talks"],
            unit=unit,
            works_average=averages["works"],
            talks_average=averages["talks"],
            works_steps=choices["works"].window,
            talks_steps=choices["talks"].window,
        )

    def quality(self, evidence: Evidence) -> float:
        """Mean AUROC within source and model, at points of the run and at equal length."""
        readings = self.readings(evidence)
        values = [auroc(readings, point, rounds=1).value for point in CHOSEN_BY]
        known = [each for each in (*values, matched_auroc(readings)[0]) if not math.isnan(each)]
        return float(np.mean(known)) if known else 0.0

    def _loss(self, evidence: Evidence) -> float:
        """The loss in bits over prefixes of every run, given the rate of its source and model."""
        if not evidence:
            return 0.0
        x, y, offset = prefixes(self.readings(evidence), POINTS)
        return log_loss(offset + x, y)

    def _words(
        self, training: Sequence[int], judged: Sequence[int], choice: Choice, *, works: bool
    ) -> Evidence:
        weights = self.words.fit(training, choice, works=works)
        own = [n for n in training if self.runs[n].works == works]
        average = _mean(self.words.evidence(weights, own, choice.window))
        found = self.words.evidence(weights, judged, choice.window)
        return {n: each - average for n, each in found.items()}

    def _features(self, training: Sequence[int], judged: Sequence[int]) -> Evidence:
        model = fit_risk([self.runs[n] for n in training], newton)
        return {n: model.features(self.runs[n]) for n in judged}

    def readings(self, evidence: Evidence) -> list[RunReading]:
        """The runs with these risks."""
        return [
            RunReading(
                label=self.runs[n].label,
                scores=tuple(own),
                risks=tuple([risk_of(float(each)) for each in own]),
                first={},
            )
            for n, own in sorted(evidence.items())
        ]


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


def blend(features: Evidence, words: Evidence, scale: float, early: float) -> Evidence:
    """The evidence of both, less of it early in a run."""
    found = {}
    for number, own in features.items():
        steps = np.arange(1, len(own) + 1)
        found[number] = (own + scale * words[number]) * steps / (steps + early)
    return found


def _deviation(evidence: Evidence) -> float:
    return float(np.concatenate([*evidence.values()]).std()) if evidence else 0.0


def _mean(evidence: Evidence) -> float:
    return float(np.mean([own.mean() for own in evidence.values()])) if evidence else 0.0


def word_fit(runs: Sequence[LabelledRun]) -> FitWords:
    """The fit of words to any part of these runs; each part is fitted once."""
    study = Study(Words(runs))
    place = {run.digest: number for number, run in enumerate(runs)}
    ship = cache(study.ship)
    return lambda part: ship(tuple([place[run.digest] for run in part]))


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
    """The outer folds of each reading."""
    fold = folds_of((run.label.group for run in runs), FOLDS, SEED)
    return {
        "groups": by_key([fold[run.label.group] for run in runs]),
        "sources": by_key([run.label.source for run in runs]),
        "models": by_key([run.label.model for run in runs]),
    }


# The table.


def run_heldout(
    files: Sequence[Path], *, out: TextIO | None = None, err: TextIO | None = None
) -> int:
    """Print the figures of each reading.

    Returns the exit status: 0 done, 1 some recordings could not be read and were left out.
    """
    out, err = out or sys.stdout, err or sys.stderr
    labelled, problems = read_labelled(files, err)
    runs = sorted(labelled, key=lambda run: (run.label.id, run.digest))
    study = Study(Words(runs))
    folds = splits(runs)
    columns: dict[str, list[RunReading]] = {}
    for name, own in folds.items():
        columns[f"features, {name}"] = study.readings(study.features_alone(own))
        columns[f"with words, {name}"] = study.readings(study.held_out(own))
    shuffled = Study(Words(permuted(runs)))
    columns["permuted, groups"] = shuffled.readings(shuffled.held_out(folds["groups"]))
    console = Console(file=out, width=None if out.isatty() else 200, highlight=False)
    console.print(figures(columns))
    return 1 if problems else 0


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
        for point in CHOSEN_BY:
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
