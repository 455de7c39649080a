"""`gateway calibrate`: fit scorer and risk to labelled runs, and report on runs they never saw."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from rich.console import Console
from rich.table import Table

from gateway.errors import ConfigError
from gateway.offline.evaluation import CODING, POINTS, RunReading, auroc, by, signal_rates
from gateway.offline.fitting import SEED, Fitted, fit
from gateway.offline.labelled_runs import LabelledRun, label_run
from gateway.offline.playback import ALARM, RISK, STATE_SIGNALS
from gateway.offline.recordings import parse_recording, read_lines, recording_files, write_output
from gateway.steering.acting import ACTIONS, NO_EVIDENCE, ActSettings
from gateway.steering.monitors import MONITORS
from gateway.steering.scoring.calibration import (
    FEATURES,
    RISK_FEATURES,
    SIGNALS,
    SPANS,
    calibration_to_json,
)
from gateway.text.formatting import progress_bar

SIGNALS_OF: Mapping[str, tuple[str, ...]] = {
    "route_fast": ("FAST",),
    "route_slow": ("SLOW", "SKIP"),
    "monitor_text": MONITORS,
    "e1": MONITORS,
    "e2": (),
    "skip_directive": ("SKIP",),
}
"""The signals that can trigger each action; an action without signals is always allowed."""


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
    """Run the command: fit, report, and write the weights to a file if one is named.

    Returns the exit status: 0 done, 1 some recordings could not be read and were left out.

    Raises:
        ConfigError: nothing to read, too few labelled runs, or the file cannot be written.
    """
    if weights is not None and not weights.parent.is_dir():
        # Checked first, because fitting takes minutes.
        raise ConfigError(f"{weights}: cannot be written: no such directory")

    out, err = out or sys.stdout, err or sys.stderr
    runs, problems = read_labelled(files, err)
    fitted = fit(runs, seed=seed)
    acting = acting or ActSettings()
    if weights is not None:
        write_output(weights, calibration_to_json(fitted.calibration))
    if as_json:
        out.write(report_json(fitted, acting) + "\n")
    else:
        print_report(fitted, acting, out)
    return 1 if problems else 0


def read_labelled(files: Sequence[Path], err: TextIO) -> tuple[list[LabelledRun], int]:
    """The labelled runs, and the number of recordings that cannot be read; `err` names these."""
    runs, problems = [], 0
    with progress_bar(err) as bar:
        task = bar.add_task("reading", total=None)
        for file, number, text in read_lines(recording_files(files)):
            bar.advance(task)
            try:
                run = label_run(parse_recording(text, f"{file.name}:{number}"))
            except ConfigError as exc:
                problems += 1
                err.write(f"gateway: {exc}\n")
                continue
            if run is not None:
                runs.append(run)
    return runs, problems


def print_report(fitted: Fitted, acting: ActSettings, out: TextIO) -> None:
    """Print the report as tables."""
    console = Console(file=out, width=None if out.isatty() else 120, highlight=False)
    data = fitted.calibration.provenance
    console.print(
        f"{data['runs']} labelled runs, {data['steps']} steps, {data['groups']} groups, "
        f"{data['failed']} failed; held out: {data['method']['folds']} folds by group"
    )
    sides = {"calibrated + robust": fitted.held_out, "reference": fitted.reference}
    console.print(ranking_table(sides, "AUROC for failure, pairs within source and model"))
    console.print(alarm_table(sides))
    console.print(_signals(fitted))
    console.print(_actions(fitted, acting))
    console.print(_weights(fitted))


def ranking_table(runs: Mapping[str, Sequence[RunReading]], title: str) -> Table:
    """AUROC at the three points, per source and side."""
    table = Table(title=title, title_justify="left")
    for name in ("source", "", *POINTS):
        table.add_column(name, overflow="fold")
    parts = {name: {"all": list(side), **by(side, _source)} for name, side in runs.items()}
    for source in next(iter(parts.values())):
        for name, side in parts.items():
            rankings = [auroc(side.get(source, []), point) for point in POINTS]
            if any(ranking.pairs for ranking in rankings):
                table.add_row(source, name, *[str(ranking) for ranking in rankings])
    return table


def _source(run: RunReading) -> str:
    return run.source or "-"


def alarm_table(runs: Mapping[str, Sequence[RunReading]]) -> Table:
    """Alarms in failed and in successful runs, per source and side, and for all coding sources."""
    table = Table(
        title="alarm: a monitor fired, SLOW was reached, or the run is likely to fail",
        title_justify="left",
    )
    table.add_column("source")
    table.add_column("")
    for name in ("failed", "successful", "ratio", "run ahead"):
        table.add_column(name, justify="right")
    parts: dict[str, dict[str, list[RunReading]]] = {}
    for name, side in runs.items():
        parts[name] = {"all": list(side), **by(side, _source)}
        coding = [run for run in side if run.source.startswith(CODING)]
        if coding:
            parts[name]["coding"] = coding
    for source in next(iter(parts.values())):
        for name, side_parts in parts.items():
            table.add_row(source, name, *rate_cells(side_parts.get(source, []), ALARM))
    return table


def rate_cells(runs: Sequence[RunReading], signal: str) -> list[str]:
    """One signal in failed and in successful runs, the ratio of both, and the share ahead."""
    rates = signal_rates(runs, signal)
    return [
        f"{rates.failed_count} {_percent(rates.failed)}",
        f"{rates.successful_count} {_percent(rates.successful)}",
        _number(rates.ratio, 2),
        _percent(rates.ahead),
    ]


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %" if share == share else "-"


def _number(value: float, digits: int) -> str:
    if value != value:
        return "-"
    return "only failed" if value == float("inf") else f"{value:.{digits}f}"


def _signals(fitted: Fitted) -> Table:
    table = Table(title="signals, held out, all runs", title_justify="left")
    table.add_column("signal")
    for name in ("failed", "successful", "expected precision", "run ahead", "steps after mistake"):
        table.add_column(name, justify="right")
    for signal in (*MONITORS, *STATE_SIGNALS, RISK, ALARM):
        rates = signal_rates(fitted.held_out, signal)
        precision = fitted.calibration.precision.get(signal, NO_EVIDENCE)
        ahead = "-" if rates.ahead != rates.ahead else f"{100 * rates.ahead:.0f} %"
        distance = "-" if rates.distance is None else f"{rates.distance:+.0f}"
        row = (rates.failed_count, rates.successful_count, f"{precision:.2f}", ahead, distance)
        table.add_row(signal, *row)
    return table


def action_rows(fitted: Fitted, acting: ActSettings) -> list[dict[str, Any]]:
    """Per action: its bar, the expected precision of each signal, the signals below the bar."""
    rows = []
    for action in ACTIONS:
        bar = acting.bar(action)
        known = fitted.calibration.precision
        found = {name: known.get(name, NO_EVIDENCE) for name in SIGNALS_OF[action]}
        if action == "route_fast":
            found = {name: round(1.0 - value, 3) for name, value in found.items()}
        if not found:
            found = {"no signal": NO_EVIDENCE}
        excluded = [name for name, value in found.items() if value < bar]
        rows.append({"action": action, "bar": bar, "precision": found, "excluded": excluded})
    return rows


def _actions(fitted: Fitted, acting: ActSettings) -> Table:
    table = Table(title="actions (steering.act_above)", title_justify="left")
    table.add_column("action")
    table.add_column("bar", justify="right")
    table.add_column("expected precision", overflow="fold")
    table.add_column("excluded", overflow="fold")
    for row in action_rows(fitted, acting):
        precision = ", ".join(f"{name} {value:.2f}" for name, value in row["precision"].items())
        table.add_row(row["action"], f"{row['bar']:.2f}", precision, ", ".join(row["excluded"]))
    return table


def _weights(fitted: Fitted) -> Table:
    calibration = fitted.calibration
    title = (
        f"weights; bias {calibration.bias:g}, budgets {calibration.budget_works} calls (works) and "
        f"{calibration.budget_talks} (talks)"
    )
    table = Table(title=title, title_justify="left")
    table.add_column("difficulty")
    for span in SPANS:
        table.add_column(span, justify="right")
    weights = dict(zip(FEATURES, calibration.weights, strict=True))
    for signal in SIGNALS:
        table.add_row(signal, *[f"{weights[f'{signal}.{span}']:g}" for span in SPANS])
    table.add_section()
    table.add_row("risk", "per unit")
    for name, weight in zip(RISK_FEATURES, calibration.risk.weights, strict=True):
        table.add_row(name, f"{weight:g}")
    return table


def report_json(fitted: Fitted, acting: ActSettings) -> str:
    """The report as one JSON object."""
    data = {
        "calibrated": _evaluation(fitted.held_out),
        "reference": _evaluation(fitted.reference),
        "actions": action_rows(fitted, acting),
        "weights": dict(zip(FEATURES, fitted.calibration.weights, strict=True)),
        "bias": fitted.calibration.bias,
        "risk_weights": dict(zip(RISK_FEATURES, fitted.calibration.risk.weights, strict=True)),
        "provenance": fitted.calibration.provenance,
    }
    return json.dumps(data)


def _evaluation(runs: Sequence[RunReading]) -> dict[str, Any]:
    parts = {"all": list(runs), **by(runs, lambda run: run.source or "-")}
    return {name: _part(members) for name, members in parts.items()}


def _part(runs: Sequence[RunReading]) -> dict[str, Any]:
    found: dict[str, Any] = {"auroc": {}, "signals": {}}
    for point in POINTS:
        estimate = auroc(runs, point)
        if estimate.pairs:
            interval = [round(estimate.low, 4), round(estimate.high, 4)]
            found["auroc"][point] = {"value": round(estimate.value, 4), "interval": interval}
    for signal in (*MONITORS, *STATE_SIGNALS, RISK, ALARM):
        rates = signal_rates(runs, signal)
        found["signals"][signal] = {
            "failed": rates.failed_count,
            "successful": rates.successful_count,
        }
    return found
