"""The report of a folder: tables in the terminal, and one page that loads nothing."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup
from rich.console import Console
from rich.table import Table

from bench.live import figures
from bench.live.figures import Difference, Estimate
from bench.live.plan import LEAST_K
from bench.live.results import Done, Results
from gateway.text.formatting import count, counted, money, percent, seconds
from gateway.text.page import page_templates, style_sheet

UNKNOWN = "not known"
_NO_CONCLUSION = "None is drawn from this run; the reasons are below."
_STYLE = """
.live-page .facts { grid-template-columns: repeat(5, minmax(0, 1fr)); }
.live-page svg { display: block; width: 100%; min-width: 120px; height: 18px; }
.live-page .axis { stroke: var(--line-strong); }
.live-page .range { stroke: var(--accent); stroke-width: 3; }
.live-page circle { fill: var(--accent); } .live-page ul { margin: 0; padding-left: 18px; }
.live-page td.mono { overflow-wrap: anywhere; } .live-page .plot-cell { width: 34%; }
@media (max-width: 760px) {
 .live-page .stacked thead { display: none; }
 .live-page .stacked tr { display: block; padding: 6px 0; border-bottom: 1px solid var(--line); }
 .live-page .stacked :is(td, th) { display: flex; gap: 12px; padding: 2px 0; border: 0; }
 .live-page .stacked :is(td, th)::before { content: attr(data-label); color: var(--dim); }
 .live-page .stacked .plot-cell { width: auto; padding: 0 16px; }
 .live-page .stacked :is(td, th) > span:first-child { margin-left: auto; text-align: right; }
 .live-page .facts { grid-template-columns: repeat(2, minmax(0, 1fr)); }
}
"""


def values(results: Results) -> dict[str, Any]:
    """Everything that the page and the terminal show."""
    plan = results.plan
    differences = figures.differences(results)
    rows = [_difference_row(d) for d in differences]
    return {
        "title": f"{plan.model} with {plan.agent}: {' against '.join(plan.arms)}",
        "plan": plan,
        "done": len(results.done),
        "planned": len(plan.trials),
        "arms": [_arm_row(results, arm) for arm in plan.arms],
        "tasks": [_task_row(results, task) for task in results.tasks],
        "differences": rows,
        "conclusions": [row["sentence"] for row in rows] if plan.claims else [_NO_CONCLUSION],
        "notes": _notes(results),
        "errors": _errors(results.done),
        "versions": _versions(results),
        "changed": len({tuple(call["versions"].items()) for call in results.calls}) > 1,
        "prices": results.prices,
    }


def print_report(results: Results, console: Console) -> None:
    """Print the tables of the page."""
    shown = values(results)
    console.print(shown["title"], markup=False)
    heads = ("arm", "trials", "solved", "success", "95 %", "tokens", "cost", "time", "guidance")
    _print(console, heads, [[row[h] for h in heads] for row in shown["arms"]])
    arms = results.plan.arms
    rows = [[row["name"], *(cell["text"] for cell in row["cells"])] for row in shown["tasks"]]
    _print(console, ("task", *arms), rows)
    columns = ("pair", "measure", "difference", "95 %", "tasks")
    _print(console, columns, [[row[c] for c in columns] for row in shown["differences"]])
    for line in [*shown["conclusions"], *shown["notes"]]:
        console.print(f"* {line}", markup=False, highlight=False)


def page(results: Results) -> str:
    """A self-contained HTML document."""
    style = Markup(style_sheet() + _STYLE)  # noqa: S704 - files of this checkout
    template = page_templates(Path(__file__).parent).get_template("report.html")
    return template.render({**values(results), "style": style})


def _print(console: Console, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    table = Table()
    for number, name in enumerate(heads):
        table.add_column(name, justify="right" if number else "left", overflow="fold")
    for row in rows:
        table.add_row(*row)
    console.print(table)


def _arm_row(results: Results, arm: str) -> dict[str, Any]:
    done = results.of(arm)
    success = figures.share(list(figures.per_task(results, arm, lambda d: d.success).values()))
    tokens = [figures.MEASURES[1].read(d) for d in done]
    costs = [d.spent.usd for d in done]
    known = [cost for cost in costs if cost is not None]
    all_known = bool(known) and len(known) == len(costs)
    return {
        "arm": arm,
        "trials": str(len(done)),
        "solved": str(sum(d.solved is True for d in done)),
        "success": percent(success.value, 1) if success else UNKNOWN,
        "95 %": _interval(success, lambda v: percent(v, 1)),
        "estimate": success,
        "tokens": _mean(tokens, count),
        "cost": _mean(costs, money),
        "total": money(sum(known)) if all_known else UNKNOWN,
        "known": f"{len(known)} of {len(costs)}",
        "time": seconds(statistics.median(d.seconds for d in done)) if done else UNKNOWN,
        "guidance": f"{sum(d.spent.guidance for d in done)}",
        "guided": sum(d.spent.guidance > 0 for d in done),
        "switched": sum(d.spent.switched > 0 for d in done),
        "stopped": sum(d.spent.stopped > 0 for d in done),
    }


def _mean(found: Sequence[float | None], shown: Any) -> str:
    known = [value for value in found if value is not None]
    whole = known and len(known) == len(found)
    return shown(statistics.fmean(known)) if whole else UNKNOWN


def _interval(estimate: Estimate | None, shown: Any) -> str:
    if estimate is None or estimate.low is None or estimate.high is None:
        return "none"
    return f"{shown(estimate.low)} to {shown(estimate.high)}"


def _task_row(results: Results, task: str) -> dict[str, Any]:
    cells = []
    for arm in results.plan.arms:
        done = results.of(arm, task)
        won = sum(d.solved is True for d in done)
        short = "" if len(done) == results.plan.k else "few"
        cells.append({"text": f"{won}/{len(done)}", "few": short, "rate": won / max(1, len(done))})
    return {
        "name": task.rpartition("/")[2],
        "cells": cells,
        "differs": len({cell["rate"] for cell in cells}) > 1,
    }


def _difference_row(difference: Difference) -> dict[str, Any]:
    estimate, measure = difference.estimate, difference.measure
    shown = {
        "success": lambda v: f"{100 * v:+.1f} points",
        "cost": lambda v: ("+" if v > 0 else "") + money(v),
        "tokens": lambda v: f"{v:+,.0f}",
        "time": lambda v: f"{v:+.2f} s",
    }[measure.name]
    return {
        "pair": f"{difference.second} less {difference.first}",
        "measure": measure.name,
        "difference": shown(estimate.value) if estimate else UNKNOWN,
        "95 %": _interval(estimate, shown),
        "tasks": str(estimate.tasks) if estimate else "0",
        "sentence": difference.sentence(),
        "plot": _plot(estimate),
    }


def _plot(estimate: Estimate | None) -> dict[str, float] | None:
    """Places from 0 to 100 on a line with 0 in its middle."""
    if estimate is None or estimate.low is None or estimate.high is None:
        return None
    reach = max(abs(estimate.low), abs(estimate.high), abs(estimate.value))
    points = {"low": estimate.low, "at": estimate.value, "high": estimate.high}
    return {name: round(50 + 47 * value / reach, 2) for name, value in points.items()}


def _notes(results: Results) -> list[str]:
    plan, tasks = results.plan, len(results.tasks)
    notes = []
    if plan.dry:
        notes.append(
            "A dry run: agent, tasks or provider are scripted. It shows that the kit measures, and"
            " nothing about steering."
        )
    if plan.inside and not plan.dry:
        notes.append("The tasks of the local harness are toys: no conclusion is drawn.")
    if plan.k < LEAST_K:
        notes.append(f"Fewer than {LEAST_K} attempts per task and arm: no conclusion is drawn.")
    if results.few:
        short = ", ".join(f"{task} in {arm} ({n} of {plan.k})" for task, arm, n in results.few)
        notes.append(f"Fewer runs than planned: {short}. Their means count like the others.")
    if tasks < figures.FEW_TASKS:
        notes.append(f"With {counted(tasks, 'task')} the intervals are rough.")
    if without := [d for d in results.done if d.solved is None]:
        notes.append(f"{counted(len(without), 'run')} without a reward: counted as not solved.")
    if silent := sum(d.spent.input_tokens is None for d in results.done):
        notes.append(
            f"In {silent} runs the gateway recorded no call: there the agent did not go through it,"
            " and the arms are the same."
        )
    if plan.claims:
        notes.append("It holds for these tasks, this model and this agent; other work may differ.")
    return notes


def _errors(done: Sequence[Done]) -> list[dict[str, Any]]:
    found = Counter((d.trial.arm, d.error) for d in done if d.error)
    return [{"arm": arm, "error": error, "runs": n} for (arm, error), n in sorted(found.items())]


def _versions(results: Results) -> list[tuple[str, str]]:
    found = [*results.calls[-1]["versions"].items()] if results.calls else []
    ran = sorted({d.agent_version for d in results.done})
    return [*found, ("agent in the results", ", ".join(ran) or UNKNOWN)]
