"""Figures of learning on recorded runs: `python -m lab learning FILE...`.

The precision of each implicit outcome. `--trials SEEDS` plays trials of lessons with a known
effect.
"""

from __future__ import annotations

import math
import random
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gateway.core.step import Step
from gateway.features.learning.life_cycle import (
    HARM_FROM,
    TRIAL_SHARE,
    Observation,
    harm_of,
    posterior,
)
from gateway.features.learning.reading import read_run
from gateway.features.learning.verdicts import implicit
from gateway.offline.recordings import Recording, parse_recording, read_lines, steps_of
from gateway.stores.learning import Posterior
from gateway.wire.coerce import as_list, as_mapping

_FINAL_TOOLS = ("submit", "finish", "done", "exit", "terminate")


@dataclass(slots=True)
class _Tally:
    runs: int = 0
    steps: int = 0
    cpu_s: float = 0.0
    outcomes: Counter[tuple[str, bool]] = field(default_factory=Counter)


def measure(files: Sequence[Path]) -> dict[str, Any]:
    """The figures, as JSON values. Raises: ConfigError for a file that cannot be read."""
    tally = _Tally()
    for recording in _recordings(files):
        steps = steps_of(recording)
        before = time.process_time()
        calls = read_run(steps)
        tally.cpu_s += time.process_time() - before
        tally.runs += 1
        tally.steps += len(steps)
        for source, verdict, *_ in implicit(calls, answered=_answered(recording, steps)):
            if recording.label.success is not None:
                right = verdict == ("success" if recording.label.success else "failure")
                tally.outcomes[source, right] += 1
    return _figures(tally)


def _recordings(files: Sequence[Path]) -> Iterator[Recording]:
    for file, number, line in read_lines(files):
        yield parse_recording(line, f"{file}:{number}")


def _answered(recording: Recording, steps: Sequence[Step]) -> bool:
    """Whether the recording ends with a final answer, or with a call that hands one over."""
    messages = as_list(recording.messages)
    last = as_mapping(messages[-1]) if messages else {}
    if last.get("role") == "assistant" and not last.get("tool_calls"):
        return True
    return bool(steps) and any(action.name in _FINAL_TOOLS for action in steps[-1].actions)


def _figures(tally: _Tally) -> dict[str, Any]:
    judged = Counter[str]()
    for (source, _), number in tally.outcomes.items():
        judged[source] += number
    return {
        "runs": tally.runs,
        "steps": tally.steps,
        "cpu_ms_per_100_steps": 1e5 * tally.cpu_s / tally.steps if tally.steps else 0.0,
        "outcomes": {
            source: {"runs": number, "precision": tally.outcomes[source, True] / number}
            for source, number in sorted(judged.items())
        },
    }


def summary_lines(found: Mapping[str, Any]) -> Iterator[str]:
    """The figures for a terminal."""
    yield f"{found['runs']} runs, {found['steps']} steps"
    yield f"{found['cpu_ms_per_100_steps']:.1f} ms CPU per 100 steps"
    for source, figures in found["outcomes"].items():
        yield f"outcome {source}: right in {100 * figures['precision']:.0f} % of {figures['runs']}"


Arms = tuple[float, float]
"""Two probabilities: held back and given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Planted:
    """A lesson with a known effect: probabilities that its failure comes again and that the run
    succeeds. Results come `batch` at a time.

    `cluster`: decisions in a run, which share its fate; `runs`: of a conversation, four of five of
    which share theirs; `drift`: both probabilities go up and down by this; `beside`: another lesson
    is drawn on the same occasions, and helps by this; `failed_known`, `solved_known`: shares of the
    failed and of the solved runs whose outcome is known; `late`: most decisions made before a
    result comes."""

    recurs: Arms
    succeeds: Arms
    batch: int = 1
    cluster: int = 1
    runs: int = 1
    drift: float = 0.0
    beside: float = 0.0
    failed_known: Arms = (1.0, 1.0)
    solved_known: Arms = (1.0, 1.0)
    late: int = 0


_FLAT: Arms = (0.5, 0.5)
PLANTED: Mapping[str, Planted] = {
    "no effect": Planted(recurs=(0.4, 0.4), succeeds=_FLAT),
    "no effect, sure success, by eight": Planted(recurs=_FLAT, succeeds=(0.97, 0.97), batch=8),
    "no effect, four in a run": Planted(recurs=_FLAT, succeeds=(0.9, 0.9), batch=8, cluster=4),
    "no effect, five runs in a conversation": Planted(
        recurs=_FLAT, succeeds=(0.6, 0.6), cluster=2, runs=5
    ),
    "no effect, rates drift": Planted(recurs=_FLAT, succeeds=_FLAT, drift=0.4),
    "no effect, its instance helps": Planted(recurs=(0.6, 0.6), succeeds=(0.4, 0.4), beside=0.3),
    "no effect, results late": Planted(recurs=_FLAT, succeeds=(0.7, 0.7), late=30),
    "+30 points": Planted(recurs=(0.6, 0.3), succeeds=(0.5, 0.8)),
    "+30 points, by eight": Planted(recurs=(0.6, 0.3), succeeds=(0.5, 0.8), batch=8),
    "+30 points, five runs in a conversation": Planted(
        recurs=(0.6, 0.3), succeeds=(0.5, 0.8), cluster=2, runs=5
    ),
    "+30 points, its instance helps": Planted(recurs=(0.8, 0.5), succeeds=(0.3, 0.6), beside=0.2),
    "+30 points, frequent failure": Planted(recurs=(0.9, 0.6), succeeds=(0.3, 0.6)),
    "+30 points, half of the outcomes": Planted(
        recurs=(0.6, 0.3), succeeds=(0.5, 0.8), failed_known=_FLAT, solved_known=_FLAT
    ),
    "no failure, success as before": Planted(recurs=(0.6, 0.3), succeeds=_FLAT),
    "-20 points of success, its failed runs unknown": Planted(
        recurs=(0.6, 0.2), succeeds=(0.6, 0.4), failed_known=(0.9, 0.3), solved_known=(0.9, 0.9)
    ),
    "-20 points of success, others' solved runs unknown": Planted(
        recurs=(0.6, 0.2), succeeds=(0.6, 0.4), failed_known=(0.9, 0.9), solved_known=(0.3, 0.9)
    ),
    "+30 points, a fifth of the outcomes": Planted(
        recurs=(0.6, 0.3), succeeds=(0.5, 0.8), failed_known=(0.2, 0.2), solved_known=(0.2, 0.2)
    ),
    "-20 points of success": Planted(recurs=(0.6, 0.2), succeeds=(0.6, 0.4)),
    "-30 points": Planted(recurs=(0.3, 0.6), succeeds=(0.6, 0.3)),
    "no failure, no success, of .87": Planted(recurs=(0.5, 0.0), succeeds=(0.87, 0.0)),
    "no failure, no success, of .5": Planted(recurs=(0.5, 0.0), succeeds=(0.5, 0.0)),
    "no failure, no success, of .15": Planted(recurs=(0.5, 0.0), succeeds=(0.15, 0.0)),
}
"""Lessons whose trials are played; those at the end as one that overrides a check."""
MOST_DECISIONS = 180
DRIFTS_EVERY = 120


def occasions(draw: random.Random, lesson: Planted) -> Iterator[Observation]:
    """The decisions about a lesson without end, each with what comes of it."""
    share = TRIAL_SHARE
    number = 0
    while True:
        fate = draw.random(), draw.random()
        for _ in range(lesson.runs):
            again, solved = fate if draw.random() < 0.8 else (draw.random(), draw.random())
            other = lesson.beside if draw.random() < share else 0.0
            for position in range(lesson.cluster):
                gives = draw.random() < share
                moved = other + lesson.drift * math.sin(2 * math.pi * number / DRIFTS_EVERY)
                recurred = again < lesson.recurs[gives] - moved
                won = solved < lesson.succeeds[gives] + moved
                known = draw.random() < (lesson.solved_known if won else lesson.failed_known)[gives]
                success = won if known and not position else None
                yield Observation(gives, share, recurred, success, first=not position)
                number += 1


def looks(seed: int, lesson: Planted) -> Iterator[Posterior]:
    """What a trial says each time that results come."""
    draw = random.Random(seed)  # noqa: S311 - no secret
    seen, due = list[Observation](), list[int]()
    for each in occasions(draw, lesson):
        seen.append(each)
        due.append(len(seen) + (draw.randrange(lesson.late) if lesson.late else 0))
        if len(seen) % max(lesson.batch, 5):
            continue
        come = [o for o, at in zip(seen, due, strict=True) if at <= len(seen)]
        yield posterior(come)
        if len(come) >= MOST_DECISIONS:
            return


def trials(
    seeds: Sequence[int], planted: Mapping[str, Planted] = PLANTED
) -> Iterator[dict[str, Any]]:
    """For each planted lesson: the share whose trial ended for harm, the share for which it did
    within 60 decisions, and the share for which help was shown as surely at any time."""
    for name, lesson in planted.items():
        ended, soon, helped = 0, 0, 0
        for seed in seeds:
            helps = False
            for found in looks(seed, lesson):
                helps = helps or (found.helps or 0.0) >= HARM_FROM
                if harm_of(found):
                    ended += 1
                    # Those at 60 are seen when the batch with the sixtieth result has come.
                    soon += found.decisions < 60 + lesson.batch
                    break
            helped += helps
        counts = {"retired": ended, "retired_within_60": soon, "helps": helped}
        yield {"lesson": name, **{key: number / len(seeds) for key, number in counts.items()}}
