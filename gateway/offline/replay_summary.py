"""Results of a replay: a summary per source and model."""

from collections import Counter
from collections.abc import Iterable, Sequence

from rich.console import Console

from gateway.offline.playback import ALARM, Replayed
from gateway.offline.recordings import report_table
from gateway.values import Fields

Run = Fields


def print_summary(kept: Sequence[Replayed], console: Console) -> None:
    """Print one row per source and model: size, states, alarms in failed and successful runs."""
    columns = ("runs", "failed", "steps", "FAST", "SLOW", "alarm failed", "alarm ok", "ahead")
    table = report_table(f"{len(kept)} runs replayed", ("source", "model"), columns)
    runs = [replayed.played for replayed in kept if replayed.played is not None]
    for (source, model), members in by_model(runs):
        table.add_row(source, model, *_summary_cells(members))
    table.add_section()
    table.add_row("all", "", *_summary_cells(runs))
    console.print(table)


def by_model(runs: Iterable[Run]) -> list[tuple[tuple[str, str], list[Run]]]:
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
    if total:
        return f"{100 * count / total:.0f} %"
    return "-"
