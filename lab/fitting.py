"""The fit of the shipped weights, by scikit-learn: `python -m lab calibrate`.

`gateway calibrate` fits the same model with a solver of its own, so that nobody who uses the
gateway has to install scikit-learn. Both give the same weights to the digits that are kept.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

import numpy as np
from msgspec.structs import replace
from rich.console import Console
from sklearn.linear_model import LogisticRegression

from gateway.offline.calibrate import print_report, read_labelled
from gateway.offline.fitting import (
    CONVERGED,
    MOST_ROUNDS,
    SEED,
    Array,
    Fitted,
    FitWords,
    LabelledRun,
    fit,
)
from gateway.offline.recordings import write_output
from gateway.steering.acting import ActSettings
from gateway.steering.scoring.calibration import calibration_to_json, words_to_json
from lab.difficulty import difficulty_figures
from lab.evidence import measure_tables
from lab.heldout import fit_words
from lab.risk import risk_figures


def run_calibrate(
    files: Sequence[Path],
    *,
    weights: Path | None = None,
    words: Path | None = None,
    seed: int = SEED,
    out: TextIO | None = None,
    err: TextIO | None = None,
) -> int:
    """Fit, print the report of `gateway calibrate` and the tables of evidence, write the weights.

    Returns the exit status: 0 done, 1 some recordings could not be read and were left out.

    Raises:
        ConfigError: nothing to read, too few labelled runs, or the file cannot be written.
    """
    out, err = out or sys.stdout, err or sys.stderr
    runs, problems = read_labelled(files, err)
    fitted = fit_with_figures(runs, seed=seed)
    if weights is not None:
        write_output(weights, calibration_to_json(fitted.calibration))
    if words is not None:
        data = {"data_sha256": fitted.calibration.provenance["data_sha256"]}
        write_output(words, words_to_json(fitted.words, data))
    print_report(fitted, ActSettings(), out)
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
    """The coefficients of a logistic regression; see `gateway.offline.fitting.Solve`.

    scikit-learn has one penalty for all columns: a column is divided by the root of its own.
    """
    root = np.sqrt(penalty)
    model = LogisticRegression(
        C=1.0, fit_intercept=False, solver="newton-cholesky", tol=CONVERGED, max_iter=MOST_ROUNDS
    )
    model.fit(design / root, outcome, sample_weight=weight)
    return np.asarray(model.coef_[0] / root)
