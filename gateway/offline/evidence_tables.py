"""The tables of difficulty and risk, for `gateway replay --evidence` and `gateway calibrate`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from rich.table import Table

from gateway.offline.difficulty_evidence import (
    FIRST_COMPARED,
    LONG_RUN,
    state_changes,
    step_correlation,
    trouble_auroc,
)
from gateway.offline.evaluation import RunReading
from gateway.offline.learned_escalation import learned_escalations
from gateway.offline.playback import ALARM, RISK
from gateway.offline.risk_evidence import CODING, calibration_errors, matched_auroc
from gateway.offline.routing_evidence import (
    escalation_value,
    fast_safety,
    left_at,
    model_pairs,
    restart_value,
)


def measure_tables(sides: Mapping[str, Sequence[RunReading]]) -> Iterator[Table]:
    """The tables over each side's runs; the first side is the one whose risk is calibrated."""
    yield _difficulty_table(sides)
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
        coding = [run for run in runs if run.source.startswith(CODING)]
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
    rules["learned: by the workload's outcomes"] = learned_escalations(pairs)
    for name, left in rules.items():
        worth = [escalation_value(pairs, left, take_over=both) for both in (False, True)]
        points = [f"{e.value:+.1f} [{e.low:+.1f}, {e.high:+.1f}]" for e in worth]
        table.add_row(name, f"{worth[0].pairs}/{len(pairs)}", *points)
    return table


def _share(value: float) -> str:
    return "-" if value != value else f"{value:.3f}"
