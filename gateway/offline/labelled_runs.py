"""Labelled runs as calibration uses them: features per step, and when each monitor first fired."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from gateway.offline.evaluation import RunReading
from gateway.offline.playback import first_showings
from gateway.offline.recordings import Recording, recorded_steps
from gateway.offline.ridge import Array
from gateway.steering.evidence.features import describe
from gateway.steering.evidence.repeats import CallMemory, spends
from gateway.steering.fold import RunFold
from gateway.steering.monitors import MonitorSettings, make_suite
from gateway.steering.policy import Policy
from gateway.steering.scoring.calibrated import RunFeatures
from gateway.steering.scoring.scorer import DifficultySettings
from gateway.steering.transcript.steps import Step, extract

_REFERENCE = Policy(
    difficulty=DifficultySettings(scorer="heuristic"), monitors=MonitorSettings(suite="reference")
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelledRun:
    """A recording with an outcome, as calibration uses it.

    `features`: steps x features. `first`: the index of the step at which each monitor first fired.
    `calls`: how many count towards the budget. `works`: whether the agent reads or changes files.
    """

    recording: Recording
    failed: bool
    features: Array
    first: Mapping[str, int]
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
    features, suite, memory = (
        RunFeatures(),
        make_suite(MonitorSettings(suite="robust")),
        CallMemory(),
    )
    rows, fired = [], []
    calls, works = 0, False
    for step in steps:
        facts = describe(step)
        features.push(facts)
        rows.append(features.values())
        suite.push(step)
        fired.append(suite.readings().fired)
        for action in facts.actions:
            calls += spends(action, memory.observe(action))
            works = works or action.changes or action.reads or action.operation.startswith("$")
    return LabelledRun(
        recording=recording,
        failed=not recording.success,
        features=np.array(rows, dtype=np.float64),
        first=_first_fired(fired),
        reference=_reference(recording, steps),
        calls=calls,
        works=works,
        digest=_digest(recording, steps),
    )


def steps_of(recording: Recording) -> tuple[Step, ...]:
    """The steps of a recording of either form."""
    if recording.messages is not None:
        return extract(recording.messages)
    return recorded_steps(recording.steps or ())


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


def _first_fired(fired: Iterable[Sequence[str]]) -> dict[str, int]:
    first: dict[str, int] = {}
    for index, names in enumerate(fired):
        for name in names:
            first.setdefault(name, index)
    return first


def _digest(recording: Recording, steps: Sequence[Step]) -> str:
    text = repr((recording.id, recording.success, steps))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
