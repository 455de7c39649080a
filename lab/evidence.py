"""The evaluation of the shipped weights on labelled runs, as tables: `python -m lab evidence`."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TextIO

from rich.console import Console
from rich.table import Table

from gateway.errors import ConfigError
from gateway.offline.playback import ALARM, RISK, Replayed, ReplayPolicy
from gateway.offline.replay import Work, replay_files
from gateway.offline.replay_summary import first_side, other_side
from gateway.steering.monitors import MONITORS
from gateway.steering.routing import RoutingSettings
from lab.calibrate import alarm_table, ranking_table, rate_cells, with_scorer
from lab.difficulty import FIRST_COMPARED, LONG_RUN, state_changes, step_correlation, trouble_auroc
from lab.evaluation import RunReading, readings
from lab.risk import calibration_errors, matched_auroc
from lab.routing import (
    escalation_value,
    fast_safety,
    learned_escalations,
    left_at,
    left_at_risk,
    model_pairs,
    restart_value,
)
from lab.signals import CODING, by


def run_evidence(
    files: Sequence[Path],
    *,
    jobs: int | None = None,
    out: TextIO | None = None,
    err: TextIO | None = None,
) -> int:
    """Replay with the calibrated scorer and the robust suite, and with the reference ones; print
    the tables of docs/evidence.md for these runs.

    Returns the exit status: 0 done, 1 some recordings could not be read.

    Raises:
        ConfigError: a path that cannot be read, or no run with an outcome.
    """
    out, err = out or sys.stdout, err or sys.stderr
    policy = with_scorer(ReplayPolicy(), "calibrated", "robust")
    other = with_scorer(ReplayPolicy(), "heuristic", "reference")
    work = Work(policy=policy, other=other)
    kept, problems = replay_files(files, work, jobs=jobs, out=out, err=err)
    if all(each.played is None or each.played["success"] is None for each in kept):
        names = ", ".join(str(file) for file in files)
        raise ConfigError(f"{names}: no run with an outcome (`success`) to evaluate")
    print_evidence(kept, Console(file=out, width=None if out.isatty() else 120, highlight=False))
    return 1 if problems else 0


def print_evidence(kept: Sequence[Replayed], console: Console) -> None:
    """Print the calibrated scorer and robust suite next to the reference ones, on the same runs.

    Runs are ranked by their risk; the reference has none, so its difficulty ranks them.
    """
    sides = (("calibrated + robust", first_side), ("reference", other_side))
    runs = {name: readings(kept, side, risks=side is first_side) for name, side in sides}
    counted = len(runs[sides[0][0]])
    console.print(ranking_table(runs, f"AUROC for failure, {counted} labelled runs"))
    console.print(alarm_table(runs))
    console.print(_signal_table(runs[sides[0][0]]))
    for table in measure_tables(runs):
        console.print(table)
    console.print(
        "Pairs only inside one source and model; 95 % bootstrap intervals by group. The shipped "
        "weights were fitted on runs of these sources: held-out figures are in docs/evidence.md.",
        markup=False,
    )


def _signal_table(runs: Sequence[RunReading]) -> Table:
    table = Table(title="each signal of calibrated + robust, all runs", title_justify="left")
    table.add_column("signal")
    for name in ("failed", "successful", "ratio", "run ahead"):
        table.add_column(name, justify="right")
    for signal in (*MONITORS, "FAST", "SLOW", "SKIP"):
        table.add_row(signal, *rate_cells(runs, signal))
    return table


def measure_tables(sides: Mapping[str, Sequence[RunReading]]) -> Iterator[Table]:
    """The tables over each side's runs; the first side is the one whose risk is calibrated."""
    yield _difficulty_table(sides)
    yield _clock_table(next(iter(sides.values())))
    yield _state_table(sides)
    yield _matched_table(sides)
    yield _calibration_table(next(iter(sides.values())))
    yield _routing_table(sides)
    yield _escalation_table(next(iter(sides.values())))


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left")
    table.add_column("")
    for name in columns:
        table.add_column(name, justify="right")
    return table


def _difficulty_table(sides: Mapping[str, Sequence[RunReading]]) -> Table:
    table = _table(
        "difficulty: AUROC for two troubled steps in the next five, and rank correlation with the "
        f"step number (solved runs of {LONG_RUN} steps, from step {FIRST_COMPARED} on)",
        "all steps",
        "inside runs",
        "rank correlation",
        "of runs",
    )
    for name, runs in sides.items():
        correlation, counted = step_correlation(runs)
        table.add_row(
            name,
            *[_share(value) for value in trouble_auroc(runs)],
            _share(correlation),
            str(counted),
        )
    first = next(iter(sides.values()))
    numbers = [_share(value) for value in trouble_auroc(first, by_step=True)]
    table.add_row("the step number", *numbers, "1.000", "")
    return table


def _clock_table(runs: Sequence[RunReading]) -> Table:
    table = _table(
        "difficulty by source: its rank correlation with the step number, and FAST",
        *("rank correlation", "of runs", "runs that enter FAST"),
    )
    for source, own in by(runs, lambda run: run.label.source).items():
        correlation, counted = step_correlation(own)
        fast = sum("FAST" in run.first for run in own)
        table.add_row(source, _share(correlation), str(counted), f"{fast} of {len(own)}")
    return table


def _state_table(sides: Mapping[str, Sequence[RunReading]]) -> Table:
    table = _table(
        "states", "runs that enter", "runs that leave it", "commonest first step", "its share"
    )
    for name, runs in sides.items():
        for state, found in state_changes(runs).items():
            share = found["commonest_share"]
            table.add_row(
                f"{name}: {state}",
                str(found["runs"]),
                str(found["left"]),
                str(found["commonest_step"] or "-"),
                "-" if share is None else f"{100 * share:.0f} %",
            )
    return table


def _matched_table(sides: Mapping[str, Sequence[RunReading]]) -> Table:
    table = _table(
        "AUROC for failure at equal length (a step counter: 0.5)", "all", "coding", "pairs"
    )
    for name, runs in sides.items():
        coding = [run for run in runs if run.label.source.startswith(CODING)]
        value, pairs = matched_auroc(runs)
        table.add_row(name, _share(value), _share(matched_auroc(coding)[0]), str(pairs))
    return table


def _calibration_table(runs: Sequence[RunReading]) -> Table:
    table = _table("calibration error of risk, in ten bins", "no prior", "prior learned on the fly")
    for point, errors in calibration_errors(runs).items():
        table.add_row(point, *[_share(error) for error in errors])
    return table


def _routing_table(sides: Mapping[str, Sequence[RunReading]]) -> Table:
    table = _table(
        "routing, scenarios that two models ran: points over chance when the stronger one restarts "
        "at a signal; the cheap one's success where the strong run went FAST, and elsewhere",
        *("pairs", "restart at SLOW", "restart at an alarm", "FAST", "elsewhere"),
    )
    for name, runs in sides.items():
        pairs = list(model_pairs(runs))
        safe, elsewhere, _ = fast_safety(pairs)
        worth = [restart_value(pairs, signal) for signal in ("SLOW", ALARM)]
        points = [f"{e.value:+.1f} [{e.low:+.1f}, {e.high:+.1f}]" for e in worth]
        table.add_row(name, str(len(pairs)), *points, _share(safe), _share(elsewhere))
    return table


def _escalation_table(runs: Sequence[RunReading]) -> Table:
    table = _table(
        "escalation to a stronger model: points of success over chance at the same frequency",
        *("escalated", "restart", "take-over"),
    )
    pairs = list(model_pairs(runs))
    rules = {name: [left_at(pair, name) for pair in pairs] for name in ("SLOW", ALARM, RISK)}
    least = RoutingSettings().escalate_at_risk
    rules[f"risk {least:g} for three steps"] = [left_at_risk(pair, least) for pair in pairs]
    rules["learned: by the workload's outcomes"] = learned_escalations(pairs)
    for name, left in rules.items():
        worth = [escalation_value(pairs, left, take_over=both) for both in (False, True)]
        points = [f"{e.value:+.1f} [{e.low:+.1f}, {e.high:+.1f}]" for e in worth]
        table.add_row(name, f"{worth[0].pairs}/{len(pairs)}", *points)
    return table


def _share(value: float) -> str:
    return "-" if value != value else f"{value:.3f}"
