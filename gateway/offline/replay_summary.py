"""Results of a replay: a summary per source and model, a comparison of two policies, and a page.
The page is one HTML file with charts and tables that loads nothing."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from operator import attrgetter
from pathlib import Path
from typing import Any

from markupsafe import Markup
from rich.console import Console
from rich.table import Table

from gateway.offline.evaluation import POINTS, RunReading, auroc
from gateway.offline.playback import ALARM, Replayed
from gateway.offline.recordings import RunLabel, report_table
from gateway.steering.fsm import FSMSettings
from gateway.text.page import page_templates, style_sheet
from gateway.text.svg import drawing, joined, slot_curve, state_bands, step_dots, threshold_lines

SHOWN_CHANGES = 20
FEW_ROUNDS = 200

Run = Mapping[str, Any]
Side = Callable[[Replayed], Run | None]
first_side: Side = attrgetter("played")  # the run under the policy
other_side: Side = attrgetter("other")  # the run under the policy it is compared with


def readings(kept: Iterable[Replayed], side: Side, *, risks: bool = True) -> list[RunReading]:
    """The labelled runs of one side, for the evaluation; without `risks` difficulty ranks them."""
    found = []
    for played in filter(None, map(side, kept)):
        steps = played["steps"]
        if played["success"] is not None and steps:
            reading = RunReading(
                label=RunLabel(**{field.name: played[field.name] for field in fields(RunLabel)}),
                scores=tuple(step["difficulty"] for step in steps),
                first=played["first"],
                risks=tuple(step["risk"] for step in steps) if risks else (),
                troubles=tuple(float(step["trouble"] is not None) for step in steps),
                states=tuple(step["state"] for step in steps),
            )
            found.append(reading)
    return found


def print_summary(kept: Sequence[Replayed], console: Console) -> None:
    """Print one row per source and model: size, states, alarms in failed and successful runs."""
    table = Table(title=f"{len(kept)} runs replayed", title_justify="left")
    for name in ("source", "model"):
        table.add_column(name, overflow="fold")
    for name in ("runs", "failed", "steps", "FAST", "SLOW", "alarm failed", "alarm ok", "ahead"):
        table.add_column(name, justify="right")
    runs = list(filter(None, map(first_side, kept)))
    for (source, model), members in _by_model(runs):
        table.add_row(source, model, *_summary_cells(members))
    table.add_section()
    table.add_row("all", "", *_summary_cells(runs))
    console.print(table)
    labelled = readings(kept, first_side)
    rankings = {point: auroc(labelled, point, rounds=FEW_ROUNDS) for point in POINTS}
    if any(ranking.pairs for ranking in rankings.values()):
        text = ", ".join(f"{point} {ranking}" for point, ranking in rankings.items())
        console.print(f"AUROC for failure within source and model: {text}")


def _by_model(runs: Iterable[Run]) -> list[tuple[tuple[str, str], list[Run]]]:
    """The runs of each source and model, in their order."""
    parts: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
        parts.setdefault((run["source"] or "-", run["model"] or "-"), []).append(run)
    return sorted(parts.items())


def _summary_cells(runs: Sequence[Run]) -> list[str]:
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


def print_comparison(kept: Sequence[Replayed], console: Console) -> None:
    """Print both policies: states, alarms, guidance, models, cost, and the runs that differ."""
    table = report_table("two policies", ("",), ("policy", "other"))
    first, other = _totals(kept, first_side), _totals(kept, other_side)
    for name in first | other:
        table.add_row(name, first.get(name, "-"), other.get(name, "-"))
    console.print(table)
    changed = [replayed for replayed in kept if replayed.changes]
    console.print(f"{len(changed)} of {len(kept)} runs change")
    for replayed in changed[:SHOWN_CHANGES]:
        console.print(_change_line(replayed), markup=False)
    if len(changed) > SHOWN_CHANGES:
        console.print(f"... and {len(changed) - SHOWN_CHANGES} more (all of them with --json)")


def _totals(kept: Iterable[Replayed], side: Side) -> dict[str, str]:
    runs = list(filter(None, map(side, kept)))
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
    names = {"monitor": "monitor texts", "skip": "SKIP directives", "hand_over": "hand-overs"}
    for source, n in sorted(guidance.items()):
        totals[names.get(source, f"look-ups {source}")] = str(n)
    totals |= {f"calls to {model}": str(n) for model, n in sorted(calls.items())}
    if usd is not None:
        totals["USD, roughly"] = f"{usd:.4f}"
    return totals


def _change_line(replayed: Replayed) -> str:
    first = replayed.changes[0]
    keys = [key for key in ("state", "fired", "model") if key in first]
    parts = [f"{key} {first[key][0]} -> {first[key][1]}" for key in keys]
    detail = "; ".join(parts) or "guidance"
    name = replayed.played["id"] if replayed.played else replayed.place
    return f"  {name}: {len(replayed.changes)} steps, first {first['index']}: {detail}"


CURVE_POINTS = 20  # of a mean curve: one for each 5 % of a run
MEAN_PX = 120
RUN_PX = 64
_OUTCOMES: Mapping[bool | None, tuple[str, str]] = {
    False: ("failed", "failure"),
    True: ("successful", "success"),
    None: ("outcome unknown", "other"),
}
"""Name of each value of `success` on the page, and its style."""


def page(kept: Sequence[Replayed], fsm: FSMSettings) -> str:
    """A self-contained HTML document about the replayed runs; `fsm` sets the threshold lines."""
    thresholds = {name: getattr(fsm, f"{name}_threshold") for name in ("fast", "slow", "skip")}
    shown = [(run, replayed) for replayed in kept if (run := replayed.played) is not None]
    runs = [run for run, _ in shown]
    values = {
        "title": f"Replay of {len(runs):,} runs",
        "style": Markup(style_sheet()),  # noqa: S704 - a file of this package
        "total": _group_row(runs),
        "thresholds": thresholds,
        "compared": any(replayed.other is not None for _, replayed in shown),
        "groups": [
            {"source": source, "model": model, **_group_row(members)}
            for (source, model), members in _by_model(runs)
        ],
        "means": _mean_charts(runs, thresholds),
        "runs": [_run_row(run, replayed, thresholds) for run, replayed in shown],
    }
    return page_templates(Path(__file__).parent).get_template("replay.html").render(values)


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
        parts, curves = [], []
        for success, (name, style) in _OUTCOMES.items():
            if own := [run["steps"] for run in members if run["success"] is success]:
                parts.append((name, style, len(own)))
                class_ = f"curve-mean-outcome outcome-{style}"
                curves.append(slot_curve(_mean_difficulty(own), MEAN_PX, class_=class_))
        chart = drawing(
            MEAN_PX,
            *threshold_lines(thresholds, MEAN_PX),
            *curves,
            class_="plot",
            role="img",
            aria_label=f"Mean difficulty of {source or 'all runs'} by outcome",
        )
        charts.append({"source": source or "-", "counts": parts, "drawing": chart})
    return charts


def _mean_difficulty(runs: Sequence[Sequence[Mapping[str, Any]]]) -> list[float]:
    """Mean difficulty after 5 %, 10 %, ... of the steps of each run."""
    means = []
    for k in range(1, CURVE_POINTS + 1):
        reached = [steps[max(0, -(-k * len(steps) // CURVE_POINTS) - 1)] for steps in runs]
        means.append(sum(step["difficulty"] for step in reached) / len(reached))
    return means


def _run_row(run: Run, replayed: Replayed, thresholds: Mapping[str, float]) -> dict[str, Any]:
    steps = run["steps"]
    outcome, style = _OUTCOMES[run["success"]]
    difficulties = [step["difficulty"] for step in steps]
    fired = [bool(step["fired"]) for step in steps]
    second = Markup("")
    if replayed.other is not None:
        compared = [step["difficulty"] for step in replayed.other["steps"]]
        second = slot_curve(compared, RUN_PX, class_="curve-other")
    chart = drawing(
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
    return {
        "id": run["id"],
        "outcome": outcome,
        "style": style,
        "steps": len(steps),
        "fired": sorted({name for step in steps for name in step["fired"]}),
        "changes": replayed.changes,
        "drawing": chart,
    }
