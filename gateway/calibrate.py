"""Fitting the scorer on labelled runs, and saying honestly how far it carries.

Grouped cross-validation; a ridge logistic model with one free intercept per (source, model), so
that no weight can live on telling agents apart; signs held; weights drawn towards a small equal
share each rather than towards zero. The scale is then set on the out-of-fold index: easy is where
most successful runs pass through FAST, hard where few of them ever reach SLOW.
"""

from __future__ import annotations

import hashlib
import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from gateway.errors import ConfigError
from gateway.evaluation import (
    POINTS,
    RunReading,
    auroc,
    balanced_precision,
    signal_rates,
)
from gateway.fitting import (
    PRIOR_WEIGHT,
    RIDGE,
    Array,
    Example,
    Line,
    Model,
    fit_model,
    fit_scale,
    folds_of,
    squash,
)
from gateway.playback import ALARM, STATE_SIGNALS, first_showings
from gateway.progress import progress_bar
from gateway.recordings import (
    Recording,
    parse_recording,
    read_lines,
    recorded_steps,
    recording_files,
    write_output,
)
from gateway.steering.acting import ActSettings
from gateway.steering.calibrated import RunFeatures
from gateway.steering.calibration import FEATURES, SIGNS, Calibration, calibration_to_json
from gateway.steering.difficulty import DifficultySettings
from gateway.steering.features import describe
from gateway.steering.fold import RunFold
from gateway.steering.fsm import FSMSettings, FSMState, next_state
from gateway.steering.monitors import MONITORS, MonitorSettings, make_suite
from gateway.steering.policy import Policy
from gateway.steering.repeats import CallMemory, spends
from gateway.steering.steps import Step, extract

FOLDS = 5
SEED = 1
SLOW_SHARE = 0.01
FAST_SHARE = 0.55
"""Successful runs that may reach SLOW, and that should pass through FAST."""
BUDGET_QUANTILE = 0.98
BUDGET_FACTOR = 4.0
DEFAULT_BUDGETS = (190, 60)
SIGNIFICANT = 6
LEAST_RUNS = 20
_REFERENCE = Policy(
    difficulty=DifficultySettings(scorer="heuristic"), monitors=MonitorSettings(suite="reference")
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelledRun:
    """A recording as calibration sees it: features per step, and when each monitor first fired."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """The calibration, and what every run reads from a model that never saw its group.

    `reference` holds the same runs under the reference's scorer and monitors.
    """

    calibration: Calibration
    held_out: tuple[RunReading, ...]
    reference: tuple[RunReading, ...]


def label(recording: Recording) -> LabelledRun | None:
    """What calibration needs of a recording; None without an outcome or without steps."""
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
    """The recording's steps, whatever form it has."""
    if recording.messages is not None:
        return extract(recording.messages)
    return recorded_steps(recording.steps or ())


def _reference(recording: Recording, steps: Sequence[Step]) -> RunReading:
    """What the reference's scorer and monitors read off the same steps."""
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


def run_calibrate(
    files: Sequence[Path],
    *,
    weights: Path | None = None,
    as_json: bool = False,
    seed: int = SEED,
    acting: ActSettings | None = None,
    out: TextIO | None = None,
    err: TextIO | None = None,
) -> int:
    """Run the command: fit, report, and write the weights file when one is named.

    The exit status: 0 done, 1 some recordings could not be read and were left out.

    Raises:
        ConfigError: nothing to read, too few labelled runs to say anything, or no place to write.
    """
    from gateway.calibrate_report import print_report, report_json

    if weights is not None and not weights.parent.is_dir():
        # Before minutes are spent on fitting.
        raise ConfigError(f"{weights}: cannot be written: no such directory")

    out, err = out or sys.stdout, err or sys.stderr
    runs, problems = _read(files, err)
    fitted = fit(runs, seed=seed)
    acting = acting or ActSettings()
    if weights is not None:
        write_output(weights, calibration_to_json(fitted.calibration))
    if as_json:
        out.write(report_json(fitted, acting) + "\n")
    else:
        print_report(fitted, acting, out)
    return 1 if problems else 0


def _read(files: Sequence[Path], err: TextIO) -> tuple[list[LabelledRun], int]:
    runs, problems = [], 0
    with progress_bar(err) as bar:
        task = bar.add_task("reading", total=None)
        for file, number, text in read_lines(recording_files(files)):
            bar.advance(task)
            try:
                run = label(parse_recording(text, f"{file.name}:{number}"))
            except ConfigError as exc:
                problems += 1
                err.write(f"gateway: {exc}\n")
                continue
            if run is not None:
                runs.append(run)
    return runs, problems


def fit(runs: Sequence[LabelledRun], *, seed: int = SEED) -> Fitted:
    """The calibration of these runs; the same runs and seed give the same numbers.

    Raises:
        ConfigError: too few runs, or no stratum with both outcomes.
    """
    runs = sorted(runs, key=lambda run: (run.recording.id, run.digest))
    _refuse_too_little(runs)
    indices = _held_out_indices(runs, seed)
    slope, intercept = _scale(runs, indices)
    weights, offset = _fit(runs).linear()
    held_out = tuple(
        _reading(run, squash(slope * index + intercept))
        for run, index in zip(runs, indices, strict=True)
    )
    budgets = _budgets(runs)
    calibration = Calibration(
        bias=_rounded(slope * offset + intercept),
        weights=tuple([_rounded(slope * weight) for weight in weights]),
        budget_works=budgets[0],
        budget_talks=budgets[1],
        precision=_precision(held_out),
        provenance=_provenance(runs, held_out, seed),
    )
    reference = tuple(run.reference for run in runs)
    return Fitted(calibration=calibration, held_out=held_out, reference=reference)


def _refuse_too_little(runs: Sequence[LabelledRun]) -> None:
    if len(runs) < LEAST_RUNS:
        raise ConfigError(f"calibrate: {len(runs)} labelled runs, at least {LEAST_RUNS} are needed")
    outcomes: dict[tuple[str, str], set[bool]] = {}
    for run in runs:
        outcomes.setdefault(run.stratum, set()).add(run.failed)
    if all(len(seen) < 2 for seen in outcomes.values()):
        raise ConfigError("calibrate: no source and model with both failed and successful runs")
    if len({run.recording.group for run in runs}) < FOLDS:
        raise ConfigError(f"calibrate: fewer than {FOLDS} groups to cross-validate over")


def _example(run: LabelledRun) -> Example:
    return Example(features=run.features, failed=run.failed, stratum=run.stratum)


def _fit(runs: Iterable[LabelledRun]) -> Model:
    return fit_model([_example(run) for run in runs], [SIGNS[name] for name in FEATURES])


def _held_out_indices(runs: Sequence[LabelledRun], seed: int) -> list[Array]:
    fold = folds_of((run.recording.group for run in runs), FOLDS, seed)
    models = [_fit([r for r in runs if fold[r.recording.group] != k]) for k in range(FOLDS)]
    return [models[fold[run.recording.group]].index(run.features) for run in runs]


def _scale(runs: Sequence[LabelledRun], indices: Sequence[Array]) -> tuple[float, float]:
    fsm = FSMSettings()
    fine = [index for run, index in zip(runs, indices, strict=True) if not run.failed]
    return fit_scale(
        fine,
        hard=Line(score=fsm.slow_threshold, window=fsm.slow_window, share=SLOW_SHARE),
        easy=Line(score=fsm.fast_threshold, window=fsm.fast_window, share=FAST_SHARE),
    )


def _reading(run: LabelledRun, scores: Array) -> RunReading:
    fsm = FSMSettings()
    state, history, steps = FSMState.INIT, [], []
    for index, score in enumerate(scores):
        history.append(float(score))
        state = next_state(state, history[-fsm.longest_window :], fsm)
        steps.append({"index": index, "state": state.value, "fired": ()})
    first = {**first_showings(steps), **run.first}
    alarms = [first[name] for name in (*MONITORS, "SLOW", "SKIP") if name in first]
    if alarms:
        first[ALARM] = min(alarms)
    recording = run.recording
    return RunReading(
        id=recording.id,
        source=recording.source,
        model=recording.model,
        group=recording.group,
        failed=run.failed,
        scores=tuple(history),
        first=first,
        mistake_step=recording.mistake_step,
    )


def _budgets(runs: Sequence[LabelledRun]) -> tuple[int, int]:
    """Four times the calls within which nearly all successful runs ended, by kind of agent."""
    learned = []
    for works, default in zip((True, False), DEFAULT_BUDGETS, strict=True):
        calls = [run.calls for run in runs if not run.failed and run.works == works]
        if len(calls) < LEAST_RUNS:
            learned.append(default)
        else:
            learned.append(math.ceil(BUDGET_FACTOR * float(np.quantile(calls, BUDGET_QUANTILE))))
    return learned[0], learned[1]


def _precision(held_out: Sequence[RunReading]) -> dict[str, float]:
    signals = (*MONITORS, *STATE_SIGNALS, ALARM)
    return {name: round(balanced_precision(held_out, name), 3) for name in signals}


def _provenance(
    runs: Sequence[LabelledRun], held_out: Sequence[RunReading], seed: int
) -> dict[str, Any]:
    figures = {point: str(auroc(held_out, point)) for point in POINTS}
    alarm = signal_rates(held_out, ALARM)
    return {
        "data_sha256": hashlib.sha256("".join(run.digest for run in runs).encode()).hexdigest(),
        "runs": len(runs),
        "steps": sum(len(run.features) for run in runs),
        "groups": len({run.recording.group for run in runs}),
        "failed": sum(run.failed for run in runs),
        "sources": _counted(runs, lambda run: run.recording.source),
        "licenses": _counted(runs, lambda run: run.recording.license or "not stated"),
        "method": {
            "folds": FOLDS,
            "seed": seed,
            "ridge": RIDGE,
            "prior_weight": PRIOR_WEIGHT,
            "slow_share": SLOW_SHARE,
            "fast_share": FAST_SHARE,
        },
        "held_out": {
            "auroc": figures,
            "alarms": {"failed": alarm.failed_count, "successful": alarm.fine_count},
        },
    }


def _counted(runs: Sequence[LabelledRun], key: Callable[[LabelledRun], str]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for run in runs:
        counts[key(run)] = counts.get(key(run), 0) + 1
    return dict(sorted(counts.items()))


def _rounded(value: float) -> float:
    """Six significant digits: what differs beyond them differs between processors."""
    return float(f"{value:.{SIGNIFICANT}g}")
