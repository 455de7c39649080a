"""Results of a replay: a summary per source and model, and a comparison of two policies."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter

from rich.console import Console

from gateway.offline.playback import ALARM, Replayed
from gateway.offline.recordings import report_table
from gateway.values import Fields

SHOWN_CHANGES = 20

Run = Fields
Side = Callable[[Replayed], Run | None]
first_side: Side = attrgetter("played")  # the run under the policy
other_side: Side = attrgetter("other")  # the run under the policy it is compared with


def print_summary(kept: Sequence[Replayed], console: Console) -> None:
    """Print one row per source and model: size, states, alarms in failed and successful runs."""
    columns = ("runs", "failed", "steps", "FAST", "SLOW", "alarm failed", "alarm ok", "ahead")
    table = report_table(f"{len(kept)} runs replayed", ("source", "model"), columns)
    runs = list(filter(None, map(first_side, kept)))
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
    return f"{100 * count / total:.0f} %" if total else "-"


def print_comparison(kept: Sequence[Replayed], console: Console) -> None:
    """Print both policies: states, alarms, guidance, models, cost, and the runs that differ."""
    table = report_table("two policies", ("",), ("policy", "other"))
    first = _totals(kept, first_side)
    other = _totals(kept, other_side)
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
