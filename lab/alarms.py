"""Alarms on planted repetitions, labelled runs and real sessions: `python -m lab alarms FILE...`.

A record with a `form` is planted: a loop is found if an alarm is raised within ten repetitions. One
with `success` is a labelled run. Any other is a session, whose alarms are listed to be read."""

from __future__ import annotations

import gzip
import json
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from gateway.steering.fold import ConversationFold, StepOutcome
from gateway.steering.policy import Policy

REPETITIONS = 10
"""Repetitions within which a loop counts as found."""


def run_alarms(files: Sequence[Path], *, verbose: bool = False, out: TextIO | None = None) -> int:
    """Print what is alarmed in each of these files. Returns the exit status, 0."""
    out = out or sys.stdout
    counts: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for record in _records(files):
        outcomes = ConversationFold(Policy()).extend(record["messages"])
        alarms = list(_alarms(record, outcomes))
        count = counts[_group(record)]
        count[0] += bool(alarms)
        count[1] += 1
        if verbose or not _is_counted(record):
            for outcome, sentence in alarms:
                out.write(f"{record['id']}\trun {outcome.run}\t{sentence}\n")
    for group, (alarmed, total) in sorted(counts.items()):
        out.write(f"{group}: {alarmed} of {total} with an alarm, {alarmed / total:.1%}\n")
    return 0


def _records(files: Sequence[Path]) -> Iterator[Mapping[str, Any]]:
    for file in files:
        opened = gzip.open if file.suffix == ".gz" else open
        with opened(file, "rt", encoding="utf-8") as lines:
            for line in lines:
                try:
                    yield json.loads(line)
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


def _is_counted(record: Mapping[str, Any]) -> bool:
    return "form" in record or "success" in record


def _group(record: Mapping[str, Any]) -> str:
    if "form" in record:
        return f"planted, {record['kind']}"
    if "success" in record:
        return f"{record['source']}, {'solved' if record['success'] else 'failed'}"
    return "sessions"
