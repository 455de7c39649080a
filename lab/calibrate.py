"""Labelled runs as they are read for a fit, and the report of a fit on runs it never saw."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from msgspec.structs import replace
from rich.table import Table

from gateway.errors import ConfigError
from gateway.offline import recordings
from gateway.offline.playback import ALARM, RISK, STATE_SIGNALS, ReplayPolicy
from gateway.steering.acting import ACTIONS, NO_EVIDENCE, ActSettings
from gateway.steering.monitors import MONITORS, SuiteName
from gateway.steering.scoring.calibration import FEATURES, RISK_FEATURES, SIGNALS, SPANS, STALE
from gateway.steering.scoring.scorer import ScorerName
from gateway.text.formatting import progress_bar
from lab.evaluation import POINTS, RunReading, auroc
from lab.signals import CODING, by, signal_rates
from lab.weights import Fitted, LabelledRun, label_run

SIGNALS_OF: Mapping[str, tuple[str, ...]] = {
    "route_fast": ("FAST",),
    "route_slow": ("SLOW", "SKIP"),
    "monitor_text": MONITORS,
    "e1": MONITORS,
    "e2": (),
    "skip_directive": ("SKIP",),
}
"""The signals that can trigger each action; an action without signals is always allowed."""
_SIGNALS = (*MONITORS, *STATE_SIGNALS, RISK, ALARM)


def read_labelled(files: Sequence[Path], err: TextIO) -> tuple[list[LabelledRun], int]:
    """The labelled runs, and the number of recordings that cannot be read; `err` names these."""
    runs, problems = [], 0
    with progress_bar(err) as bar:
        task = bar.add_task("reading", total=None)
        for file, number, text in recordings.read_lines(recordings.recording_files(files)):
            bar.advance(task)
            try:
                run = label_run(recordings.parse_recording(text, f"{file.name}:{number}"))
            except ConfigError as exc:
                problems += 1
                err.write(f"lab: {exc}\n")
                continue
            if run is not None:
                runs.append(run)
    return runs, problems


def with_scorer(policy: ReplayPolicy, scorer: ScorerName, suite: SuiteName) -> ReplayPolicy:
    """The same policy with another scorer and suite, for recordings that are one task each. A
    labelled recording counts as one run, because its outcome is that of the whole recording."""
    core = policy.rules.policy
    difficulty = dataclasses.replace(core.difficulty, scorer=scorer)
    monitors = dataclasses.replace(core.monitors, suite=suite)
    core = dataclasses.replace(core, difficulty=difficulty, monitors=monitors, run_boundary="never")
    return dataclasses.replace(policy, rules=replace(policy.rules, policy=core))


def print_report(fitted: Fitted, acting: ActSettings, out: TextIO) -> None:
    """Print the report as tables."""
    console = recordings.report_console(out)
    data = fitted.calibration.provenance
    console.print(
        f"{data['runs']} labelled runs, {data['steps']} steps, {data['groups']} groups, "
        f"{data['failed']} failed; held out: {data['method']['folds']} folds by group"
    )
    sides = {"calibrated + robust": fitted.held_out, "reference": fitted.reference}
    title = "AUROC for failure, pairs within source and model"
    tables = ranking_table(sides, title), alarm_table(sides), _signals(fitted)
    for table in (*tables, _actions(fitted, acting), _weights(fitted)):
        console.print(table)


def ranking_table(runs: Mapping[str, Sequence[RunReading]], title: str) -> Table:
    """AUROC at the three points, per source and side."""
    table = Table(title=title, title_justify="left")
    for name in ("source", "", *POINTS):
        table.add_column(name, overflow="fold")
    parts = {name: _by_source(side) for name, side in runs.items()}
    for source in next(iter(parts.values())):
        for name, side in parts.items():
            rankings = [auroc(side.get(source, []), point) for point in POINTS]
            if any(ranking.pairs for ranking in rankings):
                table.add_row(source, name, *[str(ranking) for ranking in rankings])
    return table


def _by_source(runs: Sequence[RunReading]) -> dict[str, list[RunReading]]:
    return {"all": list(runs), **by(runs, lambda run: run.label.source or "-")}


def alarm_table(runs: Mapping[str, Sequence[RunReading]]) -> Table:
    """Alarms in failed and in successful runs, per source and side, and for all coding sources."""
    title = "alarm: a monitor fired, SLOW was reached, or the run is likely to fail"
    columns = ("failed", "successful", "ratio", "run ahead")
    table = recordings.report_table(title, ("source", ""), columns)
    parts = {name: _by_source(side) for name, side in runs.items()}
    for side_parts in parts.values():
        coding = [run for run in side_parts["all"] if run.label.source.startswith(CODING)]
        if coding:
            side_parts["coding"] = coding
    for source in next(iter(parts.values())):
        for name, side_parts in parts.items():
            table.add_row(source, name, *rate_cells(side_parts.get(source, []), ALARM))
    return table


def rate_cells(runs: Sequence[RunReading], signal: str) -> list[str]:
    """One signal in failed and in successful runs, the ratio of both, and the share ahead."""
    rates = signal_rates(runs, signal)
    ratio = "only failed" if rates.ratio == float("inf") else f"{rates.ratio:.2f}"
    return [
        f"{rates.failed_count} {_percent(rates.failed)}",
        f"{rates.successful_count} {_percent(rates.successful)}",
        ratio if rates.ratio == rates.ratio else "-",
        _percent(rates.ahead),
    ]


def _percent(share: float, digits: int = 1) -> str:
    return f"{100 * share:.{digits}f} %" if share == share else "-"


def _signals(fitted: Fitted) -> Table:
    columns = ("failed", "successful", "expected precision", "run ahead", "steps after mistake")
    table = recordings.report_table("signals, held out, all runs", ("signal",), columns)
    for signal in _SIGNALS:
        rates = signal_rates(fitted.held_out, signal)
        precision = fitted.calibration.precision.get(signal, NO_EVIDENCE)
        ahead = _percent(rates.ahead, 0)
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
        found = found or {"no signal": NO_EVIDENCE}
        excluded = [name for name, value in found.items() if value < bar]
        rows.append({"action": action, "bar": bar, "precision": found, "excluded": excluded})
    return rows


def _actions(fitted: Fitted, acting: ActSettings) -> Table:
    table = recordings.report_table("actions (steering.act_above)", ("action",), ("bar",))
    table.add_column("expected precision", overflow="fold")
    table.add_column("excluded", overflow="fold")
    for row in action_rows(fitted, acting):
        precision = ", ".join(f"{name} {value:.2f}" for name, value in row["precision"].items())
        table.add_row(row["action"], f"{row['bar']:.2f}", precision, ", ".join(row["excluded"]))
    return table


def _weights(fitted: Fitted) -> Table:
    calibration = fitted.calibration
    budgets = f"{calibration.budget_works} calls (works) and {calibration.budget_talks} (talks)"
    title = f"weights; bias {calibration.bias:g}, budgets {budgets}"
    table = recordings.report_table(title, ("difficulty",), SPANS)
    weights = dict(zip(FEATURES, calibration.weights, strict=True))
    for signal in SIGNALS:
        table.add_row(signal, *[f"{weights[f'{signal}.{span}']:g}" for span in SPANS])
    table.add_row("stale", f"{weights[STALE]:g}")
    table.add_section()
    table.add_row("risk", "per unit")
    for name, weight in zip(RISK_FEATURES, calibration.risk.weights, strict=True):
        table.add_row(name, f"{weight:g}")
    return table


def report_json(fitted: Fitted, acting: ActSettings) -> str:
    """The report as one JSON object."""
    sides = {"calibrated": fitted.held_out, "reference": fitted.reference}
    data: dict[str, Any] = {
        side: {name: _part(members) for name, members in _by_source(runs).items()}
        for side, runs in sides.items()
    }
    calibration = fitted.calibration
    data["actions"] = action_rows(fitted, acting)
    data["weights"] = dict(zip(FEATURES, calibration.weights, strict=True))
    data["bias"] = calibration.bias
    data["risk_weights"] = dict(zip(RISK_FEATURES, calibration.risk.weights, strict=True))
    return json.dumps(data | {"provenance": calibration.provenance})


def _part(runs: Sequence[RunReading]) -> dict[str, Any]:
    found: dict[str, Any] = {"auroc": {}, "signals": {}}
    for point in POINTS:
        if (estimate := auroc(runs, point)).pairs:
            interval = [round(estimate.low, 4), round(estimate.high, 4)]
            found["auroc"][point] = {"value": round(estimate.value, 4), "interval": interval}
    for signal in _SIGNALS:
        rates = signal_rates(runs, signal)
        counts = {"failed": rates.failed_count, "successful": rates.successful_count}
        found["signals"][signal] = counts
    return found
