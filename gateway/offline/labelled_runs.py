"""Labelled runs as calibration uses them: features, troubles and fired monitors per step.

The label of difficulty is trouble ahead, which every run has; that of risk is the outcome.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gateway.offline.evaluation import RunReading
from gateway.offline.playback import first_showings
from gateway.offline.recordings import Recording, steps_of
from gateway.steering.evidence.observation import RunObserver
from gateway.steering.evidence.repeats import spends
from gateway.steering.fold import RunFold
from gateway.steering.monitors import MonitorSettings
from gateway.steering.monitors.robust.suite import RobustSuite
from gateway.steering.policy import Policy
from gateway.steering.scoring.calibrated import StretchFeatures
from gateway.steering.scoring.risk import RunTotals
from gateway.steering.scoring.scorer import DifficultySettings
from gateway.steering.transcript.steps import Step

Array = np.ndarray[Any, np.dtype[np.float64]]
HORIZON = 5
"""Steps ahead in which trouble is counted. Source: design section 7."""
LEAST_TROUBLES = 2
"""Troubled steps among them that make a stretch hard: one look too many is no trouble."""

_REFERENCE = Policy(
    difficulty=DifficultySettings(scorer="heuristic"), monitors=MonitorSettings(suite="reference")
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelledRun:
    """A recording with an outcome, as calibration uses it.

    `features`: steps x features. `known`: per step, the share of the window that is filled.
    `totals`: the features of risk, steps x features; `works_from`: per step, whether the run works
    on files or programs by then. `troubles`: per step, 1 where it is trouble. `fired`: the monitors
    that fire at each step.
    `calls`: how many count towards the budget. `works`: whether the agent reads or changes files.
    """

    recording: Recording
    failed: bool
    features: Array
    known: Array
    totals: Array
    works_from: Array
    troubles: Array
    fired: Sequence[tuple[str, ...]]
    reference: RunReading
    calls: int
    works: bool
    digest: str

    @property
    def stratum(self) -> tuple[str, str]:
        return self.recording.source, self.recording.model


def label_run(recording: Recording) -> LabelledRun | None:
    """Read a recording for calibration; None if it has no outcome or no steps."""
    steps = steps_of(recording)
    if recording.success is None or not steps:
        return None
    observer, features, totals = RunObserver(), StretchFeatures(), RunTotals()
    suite = RobustSuite(MonitorSettings(suite="robust"))
    rows, known, risk_rows, works_from, troubles, fired = [], [], [], [], [], []
    calls = 0
    for step in steps:
        observed = observer.observe(step)
        features.push(observed)
        rows.append(features.values())
        known.append(features.known)
        totals.push(observed)
        risk_rows.append(totals.values())
        works_from.append(totals.works)
        troubles.append(observed.trouble is not None)
        suite.push_observed(observed)
        fired.append(suite.readings().fired)
        for action, repeat in observed.actions:
            calls += spends(action, repeat)
    return LabelledRun(
        recording=recording,
        failed=not recording.success,
        features=np.array(rows, dtype=np.float64),
        known=np.array(known, dtype=np.float64),
        totals=np.array(risk_rows, dtype=np.float64),
        works_from=np.array(works_from, dtype=np.bool_),
        troubles=np.array(troubles, dtype=np.float64),
        fired=fired,
        reference=_reference(recording, steps),
        calls=calls,
        works=totals.works,
        digest=_digest(recording, steps),
    )


def _reference(recording: Recording, steps: Sequence[Step]) -> RunReading:
    """The same steps, read by the reference scorer and monitors."""
    fold = RunFold(_REFERENCE)
    scores, entries = [], []
    for index, step in enumerate(steps):
        outcome = fold.push(step)
        scores.append(outcome.difficulty)
        entries.append(
            {"index": index, "state": outcome.state.value, "fired": outcome.readings.fired}
        )
    return RunReading(
        id=recording.id,
        source=recording.source,
        model=recording.model,
        group=recording.group,
        failed=not recording.success,
        scores=tuple(scores),
        first=first_showings(entries),
        mistake_step=recording.mistake_step,
    )


def _digest(recording: Recording, steps: Sequence[Step]) -> str:
    text = repr((recording.id, recording.success, steps))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def trouble_ahead(troubles: Sequence[float] | Array) -> Array:
    """Per step, 1 if at least two of the next five steps are trouble, else 0; NaN for the last."""
    total = np.concatenate([[0.0], np.cumsum(np.asarray(troubles, dtype=np.float64))])
    length = len(total) - 1
    ahead = np.array([total[min(i + 1 + HORIZON, length)] - total[i + 1] for i in range(length)])
    labels = (ahead >= LEAST_TROUBLES).astype(np.float64)
    labels[-1:] = np.nan
    return np.asarray(labels)
