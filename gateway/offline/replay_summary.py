"""Results of a replay: a summary per source and model, a comparison of two policies, and a page.

The page is one HTML file with charts and tables that loads nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup
from rich.console import Console
from rich.table import Table

from gateway.offline.evaluation import POINTS, RunReading, auroc
from gateway.offline.playback import ALARM, Replayed
from gateway.steering.fsm import FSMSettings
from gateway.text.page import page_templates, style_sheet
from gateway.text.svg import drawing, joined, slot_curve, state_bands, step_dots, threshold_lines

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


CURVE_POINTS = 20
"""Points of a mean curve: one for each 5 % of a run."""
MEAN_PX = 120
RUN_PX = 64
_OUTCOMES: Mapping[bool | None, tuple[str, str]] = {
    False: ("failed", "failure"),
    True: ("successful", "success"),
    None: ("outcome unknown", "other"),
}
"""Name of each value of `success` on the page, and its style."""

Run = Mapping[str, Any]


def page(kept: Sequence[Replayed], fsm: FSMSettings | None = None) -> str:
    """A self-contained HTML document about the replayed runs; `fsm` sets the threshold lines."""
    fsm = fsm or FSMSettings()
    thresholds = {
        "fast": fsm.fast_threshold,
        "slow": fsm.slow_threshold,
        "skip": fsm.skip_threshold,
    }
    shown = [replayed for replayed in kept if replayed.played is not None]
    runs = [replayed.played for replayed in shown if replayed.played is not None]
    values = {
        "title": f"Replay of {len(runs):,} runs",
        "style": Markup(style_sheet()),  # noqa: S704 - a file of this package
        "total": _group_row(runs),
        "thresholds": thresholds,
        "compared": any(replayed.other is not None for replayed in shown),
        "groups": _groups(runs),
        "means": _mean_charts(runs, thresholds),
        "runs": [_run_row(replayed, thresholds) for replayed in shown],
    }
    return page_templates(Path(__file__).parent).get_template("replay.html").render(values)


def _groups(runs: Iterable[Run]) -> list[dict[str, Any]]:
    """One row of the table per source and model."""
    parts: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
        parts.setdefault((run["source"] or "-", run["model"] or "-"), []).append(run)
    return [
        {"source": source, "model": model, **_group_row(members)}
        for (source, model), members in sorted(parts.items())
    ]


def _group_row(runs: Sequence[Run]) -> dict[str, Any]:
    failed = [run for run in runs if run["success"] is False]
    successful = [run for run in runs if run["success"] is True]
    return {
        "count": len(runs),
        "steps": sum(len(run["steps"]) for run in runs),
        "failed": len(failed),
        "alarms_failed": _alarms(failed),
        "alarms_successful": _alarms(successful),
    }


def _alarms(runs: Sequence[Run]) -> str:
    return f"{sum(ALARM in run['first'] for run in runs)}/{len(runs)}" if runs else "-"


def _mean_charts(runs: Sequence[Run], thresholds: Mapping[str, float]) -> list[dict[str, Any]]:
    """Per source: a curve of the mean difficulty for each outcome, and how many runs each has."""
    charts = []
    for source in sorted({run["source"] for run in runs}):
        members = [run for run in runs if run["source"] == source and run["steps"]]
        counts = Counter(run["success"] for run in members)
        curves = [
            slot_curve(
                _mean_difficulty([run for run in members if run["success"] is success]),
                MEAN_PX,
                class_=f"curve-mean-outcome outcome-{style}",
            )
            for success, (_, style) in _OUTCOMES.items()
            if counts[success]
        ]
        charts.append(
            {
                "source": source or "-",
                "counts": [
                    (name, style, counts[success])
                    for success, (name, style) in _OUTCOMES.items()
                    if counts[success]
                ],
                "drawing": drawing(
                    MEAN_PX,
                    *threshold_lines(thresholds, MEAN_PX),
                    *curves,
                    class_="plot",
                    role="img",
                    aria_label=f"Mean difficulty of {source or 'all runs'} by outcome",
                ),
            }
        )
    return charts


def _mean_difficulty(runs: Iterable[Run]) -> list[float]:
    """Mean difficulty after 5 %, 10 %, ... of the steps of each run."""
    scores = [[step["difficulty"] for step in run["steps"]] for run in runs]
    means = []
    for k in range(1, CURVE_POINTS + 1):
        reached = [run[max(0, -(-k * len(run) // CURVE_POINTS) - 1)] for run in scores]
        means.append(sum(reached) / len(reached))
    return means


def _run_row(replayed: Replayed, thresholds: Mapping[str, float]) -> dict[str, Any]:
    run = replayed.played
    assert run is not None
    steps = run["steps"]
    outcome, style = _OUTCOMES[run["success"]]
    return {
        "id": run["id"],
        "outcome": outcome,
        "style": style,
        "steps": len(steps),
        "fired": sorted({name for step in steps for name in step["fired"]}),
        "changes": replayed.changes,
        "drawing": _run_chart(run, replayed.other, thresholds),
    }


def _run_chart(run: Run, other: Run | None, thresholds: Mapping[str, float]) -> Markup:
    steps = run["steps"]
    difficulties = [step["difficulty"] for step in steps]
    fired = [bool(step["fired"]) for step in steps]
    second = Markup("")
    if other is not None:
        compared = [step["difficulty"] for step in other["steps"]]
        second = slot_curve(compared, RUN_PX, class_="curve-other")
    return drawing(
        RUN_PX,
        joined(state_bands([step["state"] for step in steps], RUN_PX, named=False)),
        joined(threshold_lines(thresholds, RUN_PX)),
        slot_curve(difficulties, RUN_PX, class_="curve"),
        second,
        joined(step_dots(difficulties, fired, RUN_PX, only_fired=True)),
        class_="plot difficulty",
        role="img",
        aria_label=f"Difficulty by step of {run['id']}, on bands of its states",
    )
