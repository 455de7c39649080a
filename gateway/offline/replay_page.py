"""The page of a replay: charts and tables in one HTML file that loads nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from gateway.offline.playback import ALARM, Replayed
from gateway.steering.fsm import FSMSettings
from gateway.text.difficulty_chart import state_bands, step_dots, threshold_lines
from gateway.text.page import page_templates, style_sheet
from gateway.text.svg import drawing, joined, slot_curve

CURVE_POINTS = 20
"""Points of a mean curve: one for each 5 % of a run."""
MEAN_PX = 120
RUN_PX = 64
_OUTCOMES: Mapping[bool | None, tuple[str, str]] = {
    False: ("failed", "failure"),
    True: ("successful", "success"),
    None: ("outcome unknown", "other"),
}
"""What the page calls each value of `success`, and its style."""

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
