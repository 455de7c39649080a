"""What calibration reports: held-out figures beside the reference's, and each action's worth."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, TextIO

from rich.console import Console
from rich.table import Table

from gateway.calibrate import Fitted
from gateway.evaluation import POINTS, RunReading, auroc, by, signal_rates
from gateway.playback import ALARM, STATE_SIGNALS
from gateway.replay_summary import alarm_table, ranking_table
from gateway.steering.acting import ACTIONS, NO_EVIDENCE, ActSettings
from gateway.steering.calibration import FEATURES
from gateway.steering.monitors import MONITORS

SIGNALS_OF: Mapping[str, tuple[str, ...]] = {
    "route_fast": ("FAST",),
    "route_slow": ("SLOW", "SKIP"),
    "monitor_text": MONITORS,
    "e1": MONITORS,
    "e2": (),
    "skip_directive": ("SKIP",),
}
"""The signals each action may rest on; none means it is taken without one."""


def print_report(fitted: Fitted, acting: ActSettings, out: TextIO) -> None:
    """The whole report as tables."""
    console = Console(file=out, width=None if out.isatty() else 120, highlight=False)
    source = fitted.calibration.provenance
    console.print(
        f"{source['runs']} labelled runs, {source['steps']} steps, {source['groups']} groups, "
        f"{source['failed']} failed; held out: {source['method']['folds']} folds by group"
    )
    sides = {"calibrated + robust": fitted.held_out, "reference": fitted.reference}
    console.print(ranking_table(sides, "AUROC for failure, pairs within source and model"))
    console.print(alarm_table(sides))
    console.print(_signals(fitted))
    console.print(_actions(fitted, acting))
    console.print(_weights(fitted))


def _signals(fitted: Fitted) -> Table:
    table = Table(title="signals, held out, all runs", title_justify="left")
    table.add_column("signal")
    for name in ("failed", "successful", "expected precision", "run ahead", "steps after mistake"):
        table.add_column(name, justify="right")
    for signal in (*MONITORS, *STATE_SIGNALS, ALARM):
        rates = signal_rates(fitted.held_out, signal)
        precision = fitted.calibration.precision.get(signal, NO_EVIDENCE)
        ahead = "-" if rates.ahead != rates.ahead else f"{100 * rates.ahead:.0f} %"
        distance = "-" if rates.distance is None else f"{rates.distance:+.0f}"
        row = (rates.failed_count, rates.fine_count, f"{precision:.2f}", ahead, distance)
        table.add_row(signal, *row)
    return table


def action_rows(fitted: Fitted, acting: ActSettings) -> list[dict[str, Any]]:
    """Per action its bar, the expected precision per signal, and the signals the bar excludes."""
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
    table.add_column("feature")
    table.add_column("per unit", justify="right")
    for name, weight in zip(FEATURES, calibration.weights, strict=True):
        table.add_row(name, f"{weight:g}")
    return table


def report_json(fitted: Fitted, acting: ActSettings) -> str:
    """The report as one JSON object."""
    data = {
        "calibrated": _figures(fitted.held_out),
        "reference": _figures(fitted.reference),
        "actions": action_rows(fitted, acting),
        "weights": dict(zip(FEATURES, fitted.calibration.weights, strict=True)),
        "bias": fitted.calibration.bias,
        "provenance": fitted.calibration.provenance,
    }
    return json.dumps(data)


def _figures(runs: Sequence[RunReading]) -> dict[str, Any]:
    parts = {"all": list(runs), **by(runs, lambda run: run.source or "-")}
    return {name: _part(members) for name, members in parts.items()}


def _part(runs: Sequence[RunReading]) -> dict[str, Any]:
    figures: dict[str, Any] = {"auroc": {}, "signals": {}}
    for point in POINTS:
        estimate = auroc(runs, point)
        if estimate.pairs:
            interval = [round(estimate.low, 4), round(estimate.high, 4)]
            figures["auroc"][point] = {"value": round(estimate.value, 4), "interval": interval}
    for signal in (*MONITORS, *STATE_SIGNALS, ALARM):
        rates = signal_rates(runs, signal)
        figures["signals"][signal] = {"failed": rates.failed_count, "successful": rates.fine_count}
    return figures
