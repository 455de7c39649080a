"""The fit of the shipped weights, and of one's own, by scikit-learn: `python -m lab calibrate`.

The gateway fits the risk of its stored runs with a solver of its own, so that nobody who uses it
has to install scikit-learn. Both give the same weights to the digits that are kept.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TextIO

import numpy as np
from msgspec.structs import replace
from rich.console import Console
from rich.table import Table
from sklearn.linear_model import LogisticRegression

from gateway.errors import ConfigError
from gateway.learning.own_risk import CONVERGED, MOST_ROUNDS, newton
from gateway.steering.acting import ActSettings
from gateway.steering.scoring.calibration import shipped_words
from lab.calibrate import print_report, read_labelled, report_json
from lab.difficulty import difficulty_figures
from lab.evidence import measure_tables
from lab.heldout import fit_words
from lab.risk import risk_figures, words_to_json
from lab.weights import (
    FOLDS,
    SEED,
    Array,
    Fitted,
    FitWords,
    LabelledRun,
    alarm_levels,
    calibration_to_json,
    fit,
    fit_risk,
    folds_of,
    write_output,
)


def run_calibrate(
    files: Sequence[Path],
    *,
    weights: Path | None = None,
    words: Path | None = None,
    seed: int = SEED,
    as_json: bool = False,
    acting: ActSettings | None = None,
    out: TextIO | None = None,
    err: TextIO | None = None,
) -> int:
    """Fit, print the report and the tables of evidence, write the weights.

    The words are fitted as well, so that no figure is read by words that saw the run. Weights that
    are written without words belong to a gateway with the words that ship: these are kept.

    Returns the exit status: 0 done, 1 some recordings could not be read and were left out.

    Raises:
        ConfigError: nothing to read, too few labelled runs, or the file cannot be written.
    """
    if weights is not None and not weights.parent.is_dir():
        # Checked first, because fitting takes minutes.
        raise ConfigError(f"{weights}: cannot be written: no such directory")

    out, err = out or sys.stdout, err or sys.stderr
    acting = acting or ActSettings()
    runs, problems = read_labelled(files, err)
    shipped = weights is not None and words is None
    own_words = (lambda runs: shipped_words()) if shipped else fit_words
    fitted = fit_with_figures(runs, seed=seed, words=own_words)
    if weights is not None:
        write_output(weights, calibration_to_json(fitted.calibration))
    if words is not None:
        data = {"data_sha256": fitted.calibration.provenance["data_sha256"]}
        write_output(words, words_to_json(fitted.words, data))
    if as_json:
        out.write(report_json(fitted, acting) + "\n")
        return 1 if problems else 0
    print_report(fitted, acting, out)
    console = Console(file=out, width=None if out.isatty() else 120, highlight=False)
    sides = {"calibrated + robust": fitted.held_out, "reference": fitted.reference}
    for table in measure_tables(sides):
        console.print(table)
    return 1 if problems else 0


def fit_with_figures(
    runs: Sequence[LabelledRun], *, seed: int = SEED, words: FitWords | None = None
) -> Fitted:
    """The fit by scikit-learn, with the figures of difficulty and risk in its provenance."""
    fitted = fit(runs, seed=seed, solve=solve, words=words or fit_words)
    provenance = dict(fitted.calibration.provenance)
    held_out = provenance["held_out"]
    provenance["held_out"] = {
        "auroc": held_out["auroc"],
        "difficulty": difficulty_figures(fitted.held_out),
        "risk": risk_figures(fitted.held_out),
        "alarms": held_out["alarms"],
    }
    return dataclasses.replace(
        fitted, calibration=replace(fitted.calibration, provenance=provenance)
    )


def solve(design: Array, outcome: Array, weight: Array, penalty: Array) -> Array:
    """The coefficients of a logistic regression; see `lab.weights.Solve`.

    scikit-learn has one penalty for all columns: a column is divided by the root of its own. It
    refuses outcomes that are all the same, which few runs may have: the gateway's solver does not.
    """
    if outcome.min() == outcome.max():
        return newton(design, outcome, weight, penalty)
    root = np.sqrt(penalty)
    model = LogisticRegression(
        C=1.0, fit_intercept=False, solver="newton-cholesky", tol=CONVERGED, max_iter=MOST_ROUNDS
    )
    model.fit(design / root, outcome, sample_weight=weight)
    return np.asarray(model.coef_[0] / root)


# Promised and realised false alarms.

PROMISES = (0.02, 0.05, 0.1)
SHUFFLES = 20
Read = tuple[LabelledRun, Array]
"""A run and its evidence per step, by a model that never saw it."""
KINDS: Mapping[str, Callable[[LabelledRun], bool]] = {
    "all": lambda run: True,
    "code": lambda run: run.works,
    "others": lambda run: not run.works,
}


def run_promises(files: Sequence[Path], *, out: TextIO | None = None) -> int:
    """Print the rates of false alarms that are promised and realised, in halves of the scenarios
    and on sources that neither weights nor levels saw. Returns the exit status, 0."""
    runs = read_labelled(files, sys.stderr)[0]
    fold = folds_of((run.label.group for run in runs), FOLDS, SEED)

    def read_by(part: Callable[[LabelledRun], object]) -> list[Read]:
        """The runs of each part by a model of the others."""
        found: list[Read] = []
        for own in {part(run): None for run in runs}:
            model = fit_risk([run for run in runs if part(run) != own], solve, fit_words)
            found += [(run, model.log_odds(run)) for run in runs if part(run) == own]
        return found

    console = Console(file=out, width=120, highlight=False)
    known = read_by(lambda run: fold[run.label.group])
    console.print(shuffled(known))
    console.print(by_source(known, read_by(lambda run: run.label.source)))
    return 0


def shuffled(known: Sequence[Read]) -> Table:
    """Halves of the scenarios at random: one sets the level, the other one is judged."""
    table = Table(title=f"{SHUFFLES} shuffles by scenario")
    for name in ("runs", "promised", "realised", "most", "times above", "failed runs alarmed"):
        table.add_column(name)
    halves = []
    for seed in range(SHUFFLES):
        half = folds_of((run.label.group for run, _ in known), 2, seed)
        sides = ([r for r in known if half[r[0].label.group] == side] for side in (0, 1))
        halves.append(tuple(sides))
    for (kind, fits), promised in itertools.product(KINDS.items(), PROMISES):
        parts = [
            alarmed(setting, [each for each in judged if fits(each[0])], promised)
            for setting, judged in halves
        ]
        rates, recalls = np.array(parts).T
        above, mean = str(int((rates > promised).sum())), _percent(rates.mean())
        cells = _percent(promised), mean, _percent(rates.max()), above
        table.add_row(kind, *cells, _percent(recalls.mean()))
    return table


def by_source(known: Sequence[Read], unseen: Sequence[Read]) -> Table:
    """Each source by weights and levels of the others: false alarms, and failed runs alarmed."""
    table = Table(title="a source left out: false alarms / failed runs alarmed")
    for name in ("source", "solved", "failed", *map(_percent, PROMISES)):
        table.add_column(name)
    for source in sorted({run.label.source for run, _ in known}):
        others = [each for each in known if each[0].label.source != source]
        own = [each for each in unseen if each[0].label.source == source]
        failed = sum(run.label.failed for run, _ in own)
        parts = [alarmed(others, own, promised) for promised in PROMISES]
        cells = [" / ".join(map(_percent, part)) for part in parts]
        table.add_row(source, str(len(own) - failed), str(failed), *cells)
    return table


def alarmed(setting: Sequence[Read], judged: Sequence[Read], promised: float) -> list[float]:
    """The shares of the solved and of the failed judged runs that are ever called likely to fail,
    at the level that the other runs promise."""
    levels = alarm_levels([run for run, _ in setting], [own for _, own in setting])
    hits: dict[bool, list[bool]] = {False: [], True: []}
    for run, own in judged:
        hits[run.label.failed].append(bool(levels.reached(run, own, promised).any()))
    return [float(np.mean(own)) if own else math.nan for own in hits.values()]


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %" if share == share else "-"
