"""Results of a replay: a summary per source and model."""

from collections import Counter, defaultdict
from collections.abc import Sequence

from gateway.offline.playback import ALARM, Replayed
from gateway.text.page import rendered
from gateway.values import FieldDict, Fields


def summary(kept: Sequence[Replayed]) -> str:
    """One row per source and model: size, states, alarms in failed and successful runs."""
    runs = [each.played for each in kept if each.played is not None]
    rows = [*by_model(runs), (("all", ""), runs)]
    shown = [(*names, _sums(members)) for names, members in rows]
    return rendered(__package__, "replay_summary.txt", {"count": len(kept), "rows": shown})


def by_model(runs: Sequence[Fields]) -> list[tuple[tuple[str, str], list[Fields]]]:
    """The runs of each source and model, in their order."""
    groups = defaultdict[tuple[str, str], list[Fields]](list)
    for run in runs:
        groups[run["source"] or "-", run["model"] or "-"].append(run)
    return sorted(groups.items())


def _sums(runs: Sequence[Fields]) -> FieldDict:
    places = [run["first"][ALARM] + 1 for run in runs if ALARM in run["first"]]
    sizes = [len(run["steps"]) for run in runs if ALARM in run["first"]]
    ahead = sorted(1 - place / size for place, size in zip(places, sizes, strict=True))
    return {
        "runs": len(runs),
        "states": Counter(step["state"] for run in runs for step in run["steps"]),
        # by success: whether each run had an alarm
        "alarms": {
            success: [ALARM in run["first"] for run in runs if run["success"] is success]
            for success in (False, True)
        },
        "ahead": ahead[len(ahead) // 2] if ahead else None,
    }
