"""Recorded runs replayed under two policies, and what changes from the one to the other."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from operator import attrgetter
from pathlib import Path
from typing import TextIO

import orjson
from rich.console import Console

from gateway.offline.playback import ALARM, Replayed, ReplayPolicy
from gateway.offline.replay import Line, Work, replay_files
from gateway.offline.replay_summary import summary
from gateway.values import FieldDict, Fields, frozen
from lab.prices import Price, add_dollars
from lab.tables import report_console, report_table

SHOWN_CHANGES = 20


@frozen
class Compared(Replayed):
    """One run's replays under both policies."""

    other: Fields | None = None  # under the policy that it is compared with
    changes: Sequence[Fields] = ()  # steps at which the two differ


Side = Callable[[Replayed], Fields | None]
policy_of: Side = attrgetter("played")  # the run under the policy
other_of: Side = attrgetter("other")  # the run under the policy it is compared with


@frozen
class Comparison(Work):
    """Replays of each recording under two policies."""

    other: ReplayPolicy  # to compare with
    prices: Mapping[str, Price] = field(default_factory=dict)  # by model

    def __call__(self, lines: Sequence[Line]) -> list[Replayed]:
        """The replays of these recordings, in order; a broken one becomes a problem."""
        works = [
            Work(policy=policy, lines=True, answers=self.answers)
            for policy in (self.policy, self.other)
        ]
        return [self._both(one, two) for one, two in zip(*(w(lines) for w in works), strict=True)]

    def _both(self, one: Replayed, two: Replayed) -> Replayed:
        if one.line is None or two.line is None:
            return one
        played = orjson.loads(one.line)
        other = orjson.loads(two.line)
        for run in (played, other):
            add_dollars(run["tokens"], self.prices)
        changes = differences(played, other)
        line = None
        if self.lines:
            shown = {key: other[key] for key in ("first", "tokens", "steps")}
            data = {**played, "other": shown, "changes": changes}
            line = orjson.dumps(data, option=orjson.OPT_APPEND_NEWLINE).decode()
        slim = [
            {**each, "tokens": run["tokens"]} if each else None
            for each, run in ((one.played, played), (two.played, other))
        ]
        return Compared(place=one.place, line=line, played=slim[0], other=slim[1], changes=changes)


def run_comparison(
    files: Sequence[Path], work: Comparison, *, out: TextIO | None = None, err: TextIO | None = None
) -> int:
    """Replay the runs, and print both summaries. Returns the exit status: 0 done, 1 some
    recordings could not be read. Raises: ConfigError."""
    out = out or sys.stdout
    kept, problems = replay_files(files, work, jobs=None, out=out, err=err or sys.stderr)
    if not work.lines:
        out.write(summary(kept))
        print_comparison(kept, report_console(out))
    return 1 if problems else 0


def differences(one: Fields, other: Fields) -> list[FieldDict]:
    """The steps on which two replays of one recording decide differently, each value as a pair."""
    keys = ("state", "fired", "model", "guidance")
    changes = []
    for a, b in zip(one["steps"], other["steps"], strict=True):
        if changed := {key: [a.get(key), b.get(key)] for key in keys if a.get(key) != b.get(key)}:
            changes.append({"index": a["index"], **changed})
    return changes


def print_comparison(kept: Sequence[Replayed], console: Console) -> None:
    """Print both policies: states, alarms, guidance, models, cost, and the runs that differ."""
    table = report_table("two policies", ("",), ("policy", "other"))
    first = _totals(kept, policy_of)
    other = _totals(kept, other_of)
    for name in first | other:
        table.add_row(name, first.get(name, "-"), other.get(name, "-"))
    console.print(table)
    changed = [each for each in kept if isinstance(each, Compared) and each.changes]
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


def _change_line(replayed: Compared) -> str:
    first = replayed.changes[0]
    keys = [key for key in ("state", "fired", "model") if key in first]
    parts = [f"{key} {first[key][0]} -> {first[key][1]}" for key in keys]
    detail = "; ".join(parts) or "guidance"
    name = replayed.played["id"] if replayed.played else replayed.place
    return f"  {name}: {len(replayed.changes)} steps, first {first['index']}: {detail}"
