"""Alarms and acts on any recordings, as the tables of docs/evidence.md: `python -m lab alarms`.

A record with a `form` is planted: a loop is found if an alarm is raised within ten repetitions. One
with `success` is a labelled run. Any other is a session, whose alarms are listed to be read."""

from __future__ import annotations

import gzip
import json
import random
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from gateway.core.decision_settings import Policy
from gateway.core.fold import StepOutcome
from gateway.offline.playback import ReplayPolicy, play, recorded_calls
from gateway.offline.recordings import recording_of
from gateway.reporting.statistics import wilson
from gateway.steering.runs_of_transcript import ConversationFold
from lab.signals import CODING

REPETITIONS = 10
"""Repetitions within which a loop counts as found."""
ROUNDS = 1000
"""Draws of scenarios for the interval of a sum."""
SEED = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """One labelled run of `tokens` in all, of which `saved` come after a second strike, which would
    end it (0 without one). `group`: the scenario, drawn whole for an interval."""

    group: str
    tokens: int
    saved: int


@dataclass(slots=True)
class Found:
    """What was counted. `alarmed`, `fast`, `struck`: records and those with it, by group;
    `forms`: transcripts with an alarm, by set, kind and form; `ended`: the labelled runs."""

    alarmed: dict[str, list[int]] = field(default_factory=lambda: defaultdict(lambda: [0, 0]))
    fast: dict[str, list[int]] = field(default_factory=lambda: defaultdict(lambda: [0, 0]))
    struck: dict[str, list[int]] = field(default_factory=lambda: defaultdict(lambda: [0, 0]))
    forms: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    ended: list[Ended] = field(default_factory=list)


def run_alarms(files: Sequence[Path], *, verbose: bool = False, out: TextIO | None = None) -> int:
    """Print what is alarmed in each of these files. Returns the exit status, 0."""
    out = out or sys.stdout
    found = Found()
    for project, record in _records(files):
        outcomes = ConversationFold(Policy()).extend(record["messages"])
        alarms = list(_alarms(record, outcomes))
        for group in _groups(project, record):
            _count(found.alarmed[group], bool(alarms))
        if "form" in record:
            found.forms[_set_of(record)][record["form"]] += bool(alarms)
        elif "success" in record:
            _play(record, project, found)
        if verbose or not _is_counted(record):
            for outcome, sentence in alarms:
                out.write(f"{record['id']}\trun {outcome.run}\t{sentence}\n")
    for line in _tables(found):
        out.write(f"{line}\n")
    return 0


def share_line(count: Sequence[int]) -> str:
    """A count as `1 of 4 (25.0 %) [4.6, 69.9]`: the 95 % interval in percent."""
    shown, total = count
    low, high = wilson(shown, total)
    return f"{shown} of {total} ({100 * shown / total:.1f} %) [{100 * low:.1f}, {100 * high:.1f}]"


def _records(files: Sequence[Path]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for file in files:
        opened = gzip.open if file.suffix == ".gz" else open
        with opened(file, "rt", encoding="utf-8") as lines:
            for line in lines:
                try:
                    yield file.name.split(".")[0], json.loads(line)
                except ValueError:
                    sys.stderr.write(f"{file}: a line that is no JSON is left out\n")


def _alarms(
    record: Mapping[str, Any], outcomes: Sequence[StepOutcome]
) -> Iterator[tuple[StepOutcome, str]]:
    """The alarms that count, each entry once."""
    marks = record.get("marks")
    seen = set()
    for at, outcome in enumerate(outcomes):
        if marks is not None and (at >= len(marks) or marks[at] >= REPETITIONS):
            continue
        for alarm in outcome.readings.alarms:
            if (outcome.run, alarm.entry) not in seen:
                seen.add((outcome.run, alarm.entry))
                yield outcome, alarm.sentence


def _play(record: Mapping[str, Any], place: str, found: Found) -> None:
    """Count the states and the second strikes of a labelled run, as the gateway decides them."""
    recording = recording_of(record, place)
    played = play(recording, ReplayPolicy())
    struck = next((step["index"] for step in played["steps"] if "act" in step), None)
    for group in _groups(place, record):
        _count(found.fast[group], "FAST" in played["first"])
        _count(found.struck[group], struck is not None)
    tokens = [sum(call.tokens) for call in recorded_calls(recording)]
    saved = 0 if struck is None else sum(tokens[struck + 1 :])
    group = str(record.get("group") or record["id"])
    found.ended.append(Ended(group=group, tokens=sum(tokens), saved=saved))


def _count(count: list[int], shown: bool) -> None:
    count[0] += shown
    count[1] += 1


def _is_counted(record: Mapping[str, Any]) -> bool:
    return "form" in record or "success" in record


def _set_of(record: Mapping[str, Any]) -> str:
    return f"{record['id'].split('/')[0]}, {record['kind']}"


def _groups(project: str, record: Mapping[str, Any]) -> Iterator[str]:
    """The groups that a record counts in: its own, and a wider one."""
    if "form" in record:
        yield f"planted, {record['kind']}"
        yield f"planted, {_set_of(record)}"
    elif "success" in record:
        outcome = "solved" if record["success"] else "failed"
        source = str(record.get("source") or project)
        yield f"{source}, {outcome}"
        yield f"all coding, {outcome}" if source.startswith(CODING) else f"all others, {outcome}"
    else:
        yield f"sessions of {project}"


def _tables(found: Found) -> Iterator[str]:
    """All tables, a line at a time; shares with 95 % intervals (Wilson)."""
    yield from _table("with an alarm", found.alarmed)
    for name, forms in sorted(found.forms.items()):
        yield f"\nplanted, {name}, forms by transcripts with an alarm:"
        for times in sorted(set(forms.values())):
            names = sorted(form for form, count in forms.items() if count == times)
            yield f"{times}: {len(names)} of {len(forms)} forms: {', '.join(names)}"
    yield from _table("with a second strike: an alarm on the same entry after a text", found.struck)
    if any(run.tokens for run in found.ended):
        yield f"tokens after it: {_saved(found.ended)} of all labelled runs, 95 % by scenario"
    yield from _table("that reach FAST", found.fast)


def _table(title: str, counts: Mapping[str, Sequence[int]]) -> Iterator[str]:
    if counts:
        yield f"\n{title}:"
    for group, count in sorted(counts.items()):
        yield f"{group}: {share_line(count)}"


def _saved(runs: Sequence[Ended]) -> str:
    """The share of all tokens that is saved, with its bootstrap interval over scenarios."""
    groups: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for run in runs:
        groups[run.group][0] += run.saved
        groups[run.group][1] += run.tokens
    parts = list(groups.values())
    draw = random.Random(SEED)  # noqa: S311 - no secret
    drawn = sorted(_percent(draw.choices(parts, k=len(parts))) for _ in range(ROUNDS))
    low, high = drawn[round(0.025 * ROUNDS)], drawn[round(0.975 * ROUNDS) - 1]
    return f"{_percent(parts):.1f} % [{low:.1f}, {high:.1f}]"


def _percent(parts: Sequence[Sequence[int]]) -> float:
    total = sum(part[1] for part in parts)
    return 100 * sum(part[0] for part in parts) / total if total else 0.0
