"""Figures of learning on recorded runs: `python -m lab learning FILE...`.

Lessons by kind, the share of the failing runs of one half of the scenarios that a library of the
other half covers, and the precision of each implicit outcome.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gateway.learning.mining import Finding, MinedRun, ReadCallOfRun, mine, read_run
from gateway.learning.verdicts import implicit
from gateway.offline.recordings import Recording, parse_recording, read_lines, steps_of
from gateway.steering.transcript.steps import Step
from gateway.wire.coerce import as_list, as_mapping

SPLITS = 8
"""Random halves of the scenarios over which coverage is averaged."""
_FINAL_TOOLS = ("submit", "finish", "done", "exit", "terminate")


@dataclass(slots=True)
class _Read:
    recording: Recording
    found: list[Finding]
    keys: set[str]


@dataclass(slots=True)
class _Tally:
    runs: int = 0
    steps: int = 0
    cpu_s: float = 0.0
    kinds: Counter[str] = field(default_factory=Counter)
    said: Counter[str] = field(default_factory=Counter)
    lessons: set[str] = field(default_factory=set)
    support: dict[str, set[str]] = field(default_factory=dict)
    longest_slot: int = 0
    outcomes: Counter[tuple[str, bool]] = field(default_factory=Counter)


def measure(files: Sequence[Path]) -> dict[str, Any]:
    """The figures, as JSON values. Raises: ConfigError for a file that cannot be read."""
    tally, read = _Tally(), list[_Read]()
    for recording in _recordings(files):
        steps = steps_of(recording)
        run = MinedRun(
            id=recording.label.id,
            tenant="recorded",
            conversation=recording.label.id,
            task=recording.label.group,
            steps=steps,
            at=0.0,
        )
        before = time.process_time()
        calls = read_run(steps)
        found = mine(run, calls, expires_s=1.0)
        tally.cpu_s += time.process_time() - before
        _count(tally, recording, steps, calls, found)
        keys = {call.reading.failure.key for call in calls if call.reading.failure is not None}
        read.append(_Read(recording, found, keys))
    return _figures(tally, read)


def _recordings(files: Sequence[Path]) -> Iterator[Recording]:
    for file, number, line in read_lines(files):
        yield parse_recording(line, f"{file}:{number}")


def _count(
    tally: _Tally,
    recording: Recording,
    steps: Sequence[Step],
    calls: Sequence[ReadCallOfRun],
    found: Sequence[Finding],
) -> None:
    tally.runs += 1
    tally.steps += len(steps)
    for finding in found:
        tally.kinds[finding.kind] += 1
        if finding.pattern is None:
            continue
        tally.said[finding.kind] += 1
        tally.lessons.add(finding.pattern.pattern_id)
        tally.support.setdefault(finding.key, set()).add(recording.label.group)
        for text in finding.pattern.fields.values():
            slots = (len(part) for part in text.split("`")[1::2])
            tally.longest_slot = max(tally.longest_slot, *slots, 0)
    if recording.label.success is None:
        return
    for source, verdict, *_ in implicit(calls, answered=_answered(recording, steps)):
        tally.outcomes[
            source, verdict == ("success" if recording.label.success else "failure")
        ] += 1


def _answered(recording: Recording, steps: Sequence[Step]) -> bool:
    """Whether the recording ends with a final answer, or with a call that hands one over."""
    messages = as_list(recording.messages)
    last = as_mapping(messages[-1]) if messages else {}
    if last.get("role") == "assistant" and not last.get("tool_calls"):
        return True
    return bool(steps) and any(action.name in _FINAL_TOOLS for action in steps[-1].actions)


def _figures(tally: _Tally, read: Sequence[_Read]) -> dict[str, Any]:
    judged = Counter[str]()
    for (source, _), number in tally.outcomes.items():
        judged[source] += number
    return {
        "runs": tally.runs,
        "steps": tally.steps,
        "found": dict(tally.kinds),
        "said": dict(tally.said),
        "lessons": len(tally.lessons),
        "keys": len(tally.support),
        "keys_in_two_scenarios": sum(len(groups) > 1 for groups in tally.support.values()),
        "longest_slot": tally.longest_slot,
        "cpu_ms_per_100_steps": 1e5 * tally.cpu_s / tally.steps if tally.steps else 0.0,
        "coverage": _coverage(read),
        "outcomes": {
            source: {"runs": number, "precision": tally.outcomes[source, True] / number}
            for source, number in sorted(judged.items())
        },
    }


def _coverage(read: Sequence[_Read]) -> dict[str, dict[str, float]]:
    """By source: failing runs of the held-out half, those with a failed call, those covered."""
    groups = sorted({each.recording.label.group for each in read})
    totals: dict[str, Counter[str]] = {}
    for seed in range(SPLITS):
        half = set(random.Random(seed).sample(groups, len(groups) // 2))  # noqa: S311 - no secret
        library = {
            finding.key
            for each in read
            if each.recording.label.group in half
            for finding in each.found
            if finding.pattern is not None
        }
        for each in read:
            if each.recording.label.group in half or each.recording.label.success is not False:
                continue
            counts = totals.setdefault(each.recording.label.source, Counter())
            counts["failing"] += 1
            counts["with_failed_call"] += bool(each.keys)
            counts["covered"] += bool(each.keys & library)
    return {
        source: {
            "failing_runs": counts["failing"] / SPLITS,
            "with_failed_call": counts["with_failed_call"] / counts["failing"],
            "covered": counts["covered"] / counts["failing"],
        }
        for source, counts in sorted(totals.items())
    }


def summary_lines(found: Mapping[str, Any]) -> Iterator[str]:
    """The figures for a terminal."""
    yield f"{found['runs']} runs, {found['steps']} steps"
    for kind, number in found["found"].items():
        yield f"{kind}: {number} found, {found['said'].get(kind, 0)} of them as a lesson"
    yield (
        f"{found['lessons']} lessons for {found['keys']} keys, "
        f"{found['keys_in_two_scenarios']} of them in two scenarios or more"
    )
    yield f"{found['cpu_ms_per_100_steps']:.1f} ms CPU per 100 steps"
    for source, figures in found["coverage"].items():
        yield (
            f"{source}: {100 * figures['covered']:.0f} % of the failing runs covered, "
            f"{100 * figures['with_failed_call']:.0f} % have a failed call"
        )
    for source, figures in found["outcomes"].items():
        yield f"outcome {source}: right in {100 * figures['precision']:.0f} % of {figures['runs']}"
