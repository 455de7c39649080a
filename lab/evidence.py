"""Alarms and states in labelled runs, as tables: `python -m lab evidence`."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TextIO

from rich.console import Console
from rich.table import Table

from gateway.core.monitors import MONITORS
from gateway.errors import ConfigError
from gateway.offline.playback import ALARM, STATE_SIGNALS, Replayed, ReplayPolicy
from gateway.offline.replay import replay_files
from gateway.reporting.statistics import wilson
from lab.comparison import Comparison, other_of, policy_of
from lab.evaluation import RunReading, readings, with_scorer
from lab.routing import (
    escalation_value,
    fast_safety,
    learned_escalations,
    left_at,
    model_pairs,
    restart_value,
)
from lab.signals import CODING, by, signal_rates
from lab.tables import report_console, report_table


def run_evidence(
    files: Sequence[Path],
    *,
    jobs: int | None = None,
    out: TextIO | None = None,
    err: TextIO | None = None,
) -> int:
    """Replay with the default scorer and the robust suite, and with the reference ones; print
    tables of alarms, routing and escalation for these runs.

    Returns the exit status: 0 done, 1 some recordings could not be read.

    Raises:
        ConfigError: a path that cannot be read, or no run with an outcome.
    """
    out, err = out or sys.stdout, err or sys.stderr
    policy = with_scorer(ReplayPolicy(), None, "robust")
    other = with_scorer(ReplayPolicy(), "heuristic", "reference")
    work = Comparison(policy=policy, other=other)
    kept, problems = replay_files(files, work, jobs=jobs, out=out, err=err)
    if all(each.played is None or each.played["success"] is None for each in kept):
        names = ", ".join(str(file) for file in files)
        raise ConfigError(f"{names}: no run with an outcome (`success`) to evaluate")
    print_evidence(kept, report_console(out))
    return 1 if problems else 0


def print_evidence(kept: Sequence[Replayed], console: Console) -> None:
    """Print all tables of the runs that were replayed."""
    sides = {"robust": readings(kept, policy_of), "reference": readings(kept, other_of)}
    for table in tables(sides):
        console.print(table)


def tables(sides: Mapping[str, Sequence[RunReading]]) -> Iterator[Table]:
    """The tables, one after the other: alarms, each signal, routing, escalation."""
    first = next(iter(sides.values()))
    yield alarm_table(sides)
    yield signal_table(first)
    yield _routing_table(sides)
    yield _escalation_table(first)


def alarm_table(sides: Mapping[str, Sequence[RunReading]]) -> Table:
    """Alarms in failed and in successful runs, by source and suite, and for all coding sources."""
    title = "alarm: a monitor fired, or SLOW was reached; with 95 % intervals"
    columns = ("failed", "successful", "ratio", "run ahead")
    table = report_table(title, ("source", ""), columns)
    parts = {name: _by_source(runs) for name, runs in sides.items()}
    for source in next(iter(parts.values())):
        for name, own in parts.items():
            table.add_row(source, name, *_rate_cells(own.get(source, []), ALARM))
    return table


def signal_table(runs: Sequence[RunReading]) -> Table:
    """Each monitor and state in failed and in successful runs of all sources."""
    columns = ("failed", "successful", "ratio", "run ahead")
    table = report_table("signals, all runs", ("signal",), columns)
    for signal in (*MONITORS, *STATE_SIGNALS):
        table.add_row(signal, *_rate_cells(runs, signal))
    return table


def _by_source(runs: Sequence[RunReading]) -> dict[str, list[RunReading]]:
    found = {"all": list(runs), **by(runs, lambda run: run.label.source or "-")}
    if coding := [run for run in runs if run.label.source.startswith(CODING)]:
        found["coding"] = coding
    return found


def _rate_cells(runs: Sequence[RunReading], signal: str) -> list[str]:
    """One signal in failed and in successful runs, the ratio of both, and the share ahead."""
    rates = signal_rates(runs, signal)
    ratio = "only failed" if rates.ratio == float("inf") else f"{rates.ratio:.2f}"
    return [
        _with_interval(rates.failed_count),
        _with_interval(rates.successful_count),
        ratio if rates.ratio == rates.ratio else "-",
        f"{100 * rates.ahead:.0f} %" if rates.ahead == rates.ahead else "-",
    ]


def _with_interval(count: str) -> str:
    """`7/171` with its 95 % interval in percent."""
    shown, total = map(int, count.split("/"))
    if not total:
        return count
    low, high = wilson(shown, total)
    return f"{count} {100 * shown / total:.1f} % [{100 * low:.1f}, {100 * high:.1f}]"


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left")
    table.add_column("")
    for name in columns:
        table.add_column(name)
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
    rules = {name: [left_at(pair, name) for pair in pairs] for name in ("SLOW", ALARM)}
    rules["learned: by the workload's outcomes"] = learned_escalations(pairs)
    for name, left in rules.items():
        worth = [escalation_value(pairs, left, take_over=both) for both in (False, True)]
        points = [f"{e.value:+.1f} [{e.low:+.1f}, {e.high:+.1f}]" for e in worth]
        table.add_row(name, f"{worth[0].pairs}/{len(pairs)}", *points)
    return table


def _share(value: float) -> str:
    return "-" if value != value else f"{value:.3f}"
