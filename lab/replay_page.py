"""A page about replayed runs: one HTML file with charts and tables that loads nothing."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from gateway.core.fsm import FSMSettings
from gateway.offline.playback import ALARM, Replayed
from gateway.offline.replay import Work, replay_files
from gateway.offline.replay_summary import by_model
from gateway.text.page import page_templates, style_sheet
from gateway.values import Fields
from lab.comparison import Compared
from lab.evaluation import write_output

CURVE_POINTS = 20  # of a mean curve: one for each 5 % of a run
_OUTCOMES: Mapping[bool | None, tuple[str, str]] = {
    False: ("failed", "failure"),
    True: ("successful", "success"),
    None: ("outcome unknown", "other"),
}
"""Name of each value of `success` on the page, and its style."""


def write_page(files: Sequence[Path], work: Work, path: Path) -> int:
    """Replay the runs in these files, and write the page. Returns the exit status: 1 when some
    recordings could not be read. Raises: ConfigError."""
    kept, problems = replay_files(files, work, jobs=None, out=sys.stdout, err=sys.stderr)
    write_output(path, page(kept, work.policy.rules.policy.fsm))
    print(f"page: {path}")
    return 1 if problems else 0


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
        "compared": any(isinstance(replayed, Compared) for _, replayed in shown),
        "groups": [
            {"source": source, "model": model, **_group_row(members)}
            for (source, model), members in by_model(runs)
        ],
        "means": _mean_charts(runs),
        "runs": [_run_row(run, replayed) for run, replayed in shown],
    }
    return page_templates(Path(__file__).parent).get_template("replay.html").render(values)


def _group_row(runs: Sequence[Fields]) -> dict[str, Any]:
    failed = [run for run in runs if run["success"] is False]
    successful = [run for run in runs if run["success"] is True]
    return {
        "count": len(runs),
        "steps": sum(len(run["steps"]) for run in runs),
        "failed": len(failed),
        "alarms_failed": _alarms(failed),
        "alarms_successful": _alarms(successful),
    }


def _alarms(runs: Sequence[Fields]) -> str:
    return f"{sum(ALARM in run['first'] for run in runs)}/{len(runs)}" if runs else "-"


def _mean_charts(runs: Sequence[Fields]) -> list[dict[str, Any]]:
    """Per source: a curve of the mean difficulty for each outcome, and how many runs each has."""
    charts = []
    for source in sorted({run["source"] for run in runs}):
        members = [run for run in runs if run["source"] == source and run["steps"]]
        parts, curves = [], []
        for success, (name, style) in _OUTCOMES.items():
            if own := [run["steps"] for run in members if run["success"] is success]:
                parts.append((name, style, len(own)))
                curves.append((_mean_difficulty(own), style))
        charts.append({"source": source or "-", "counts": parts, "curves": curves})
    return charts


def _mean_difficulty(runs: Sequence[Sequence[Mapping[str, Any]]]) -> list[float]:
    """Mean difficulty after 5 %, 10 %, ... of the steps of each run."""
    means = []
    for k in range(1, CURVE_POINTS + 1):
        reached = [steps[max(0, -(-k * len(steps) // CURVE_POINTS) - 1)] for steps in runs]
        means.append(sum(step["difficulty"] for step in reached) / len(reached))
    return means


def _run_row(run: Fields, replayed: Replayed) -> dict[str, Any]:
    steps = run["steps"]
    outcome, style = _OUTCOMES[run["success"]]
    changes: Sequence[Mapping[str, Any]] = ()
    compared: list[float] = []
    if isinstance(replayed, Compared) and replayed.other is not None:
        changes = replayed.changes
        compared = [step["difficulty"] for step in replayed.other["steps"]]
    return {
        "id": run["id"],
        "outcome": outcome,
        "style": style,
        "steps": len(steps),
        "fired": sorted({name for step in steps for name in step["fired"]}),
        "changes": changes,
        "compared": compared,
        "states": [step["state"] for step in steps],
        "difficulties": [step["difficulty"] for step in steps],
        "hits": [(step["difficulty"] if step["fired"] else None, True) for step in steps],
    }
