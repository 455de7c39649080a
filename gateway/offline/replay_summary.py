"""The tables of a replay: a summary per source and model, and a comparison of two policies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from gateway.offline.evaluation import POINTS, RunReading, auroc
from gateway.offline.playback import ALARM, Replayed

SHOWN_CHANGES = 20
FEW_ROUNDS = 200

Side = Callable[[Replayed], Mapping[str, Any] | None]


def readings(kept: Iterable[Replayed], side: Side, *, risks: bool = True) -> list[RunReading]:
    """The labelled runs of one side, for the evaluation; without `risks` difficulty ranks them."""
    found = []
    for replayed in kept:
        played = side(replayed)
        if played is None or played["success"] is None or not played["steps"]:
            continue
        found.append(
            RunReading(
                id=played["id"],
                source=played["source"],
                model=played["model"],
                group=played["group"],
                failed=not played["success"],
                scores=tuple(step["difficulty"] for step in played["steps"]),
                first=played["first"],
                risks=tuple(step["risk"] for step in played["steps"]) if risks else (),
                troubles=tuple(float(step["trouble"] is not None) for step in played["steps"]),
                states=tuple(step["state"] for step in played["steps"]),
                mistake_step=played["mistake_step"],
            )
        )
    return found


def first_side(replayed: Replayed) -> Mapping[str, Any] | None:
    """The run under the policy."""
    return replayed.played


def other_side(replayed: Replayed) -> Mapping[str, Any] | None:
    """The run under the policy it is compared with."""
    return replayed.other


def print_summary(kept: Sequence[Replayed], console: Console) -> None:
    """Print one row per source and model: size, states, alarms in failed and successful runs."""
    table = Table(title=f"{len(kept)} runs replayed", title_justify="left")
    for name in ("source", "model"):
        table.add_column(name, overflow="fold")
    for name in ("runs", "failed", "steps", "FAST", "SLOW", "alarm failed", "alarm ok", "ahead"):
        table.add_column(name, justify="right")
    parts: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for replayed in kept:
        if replayed.played is not None:
            key = (replayed.played["source"] or "-", replayed.played["model"] or "-")
            parts.setdefault(key, []).append(replayed.played)
    for (source, model), runs in sorted(parts.items()):
        table.add_row(source, model, *_summary_cells(runs))
    everything = [run for runs in parts.values() for run in runs]
    table.add_section()
    table.add_row("all", "", *_summary_cells(everything))
    console.print(table)
    _print_ranking(readings(kept, first_side), console)


def _summary_cells(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    steps = [step for run in runs for step in run["steps"]]
    states = Counter(step["state"] for step in steps)
    failed = [run for run in runs if run["success"] is False]
    successful = [run for run in runs if run["success"] is True]
    ahead = sorted(
        1 - (r["first"][ALARM] + 1) / len(r["steps"]) for r in runs if ALARM in r["first"]
    )
    return [
        str(len(runs)),
        str(len(failed)),
        str(len(steps)),
        _share(states["FAST"], len(steps)),
        _share(states["SLOW"] + states["SKIP"], len(steps)),
        _share(sum(ALARM in run["first"] for run in failed), len(failed)),
        _share(sum(ALARM in run["first"] for run in successful), len(successful)),
        f"{100 * ahead[len(ahead) // 2]:.0f} %" if ahead else "-",
    ]


def _share(count: int, total: int) -> str:
    return f"{100 * count / total:.0f} %" if total else "-"


def _print_ranking(runs: Sequence[RunReading], console: Console) -> None:
    rankings = [(point, auroc(runs, point, rounds=FEW_ROUNDS)) for point in POINTS]
    if all(ranking.pairs == 0 for _, ranking in rankings):
        return
    text = ", ".join(f"{point} {ranking}" for point, ranking in rankings)
    console.print(f"AUROC for failure within source and model: {text}")


def print_comparison(kept: Sequence[Replayed], console: Console) -> None:
    """Print both policies: states, alarms, guidance, models, cost, and the runs that differ."""
    table = Table(title="two policies", title_justify="left")
    for name in ("", "policy", "other"):
        table.add_column(name, justify="left" if not name else "right")
    for name, value in _totals(kept, first_side).items():
        table.add_row(name, value, _totals(kept, other_side).get(name, "-"))
    for name, value in _totals(kept, other_side).items():
        if name not in _totals(kept, first_side):
            table.add_row(name, "-", value)
    console.print(table)
    changed = [replayed for replayed in kept if replayed.changes]
    console.print(f"{len(changed)} of {len(kept)} runs change")
    for replayed in changed[:SHOWN_CHANGES]:
        console.print(_change_line(replayed), markup=False)
    if len(changed) > SHOWN_CHANGES:
        console.print(f"... and {len(changed) - SHOWN_CHANGES} more (all of them with --json)")


def _totals(kept: Iterable[Replayed], side: Side) -> dict[str, str]:
    runs = [played for replayed in kept if (played := side(replayed)) is not None]
    steps = [step for run in runs for step in run["steps"]]
    states = Counter(step["state"] for step in steps)
    guidance = Counter(item["source"] for step in steps for item in step.get("guidance", ()))
    calls: Counter[str] = Counter()
    usd: float | None = None
    for run in runs:
        for model, row in run["tokens"].items():
            calls["the requested model" if model == run["model"] else model] += int(row["calls"])
            usd = (usd or 0.0) + row["usd"] if "usd" in row else usd
    totals = {f"steps in {state}": str(n) for state, n in sorted(states.items())}
    totals["runs with an alarm"] = str(sum(ALARM in run["first"] for run in runs))
    names = {"monitor": "monitor texts", "skip": "SKIP directives"}
    for source, n in sorted(guidance.items()):
        totals[names.get(source, f"look-ups {source}")] = str(n)
    totals |= {f"calls to {model}": str(n) for model, n in sorted(calls.items())}
    if usd is not None:
        totals["USD, roughly"] = f"{usd:.4f}"
    return totals


def _change_line(replayed: Replayed) -> str:
    first = replayed.changes[0]
    parts = [
        f"{key} {pair[0]} -> {pair[1]}"
        for key, pair in first.items()
        if key in ("state", "fired", "model")
    ]
    name = replayed.played["id"] if replayed.played else replayed.place
    detail = "; ".join(parts) or "guidance"
    return f"  {name}: {len(replayed.changes)} steps, first {first['index']}: {detail}"
