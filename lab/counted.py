"""Count planted forms of our own, second tasks, gates and how often `on` acts.

    python -m lab counts RUNS.jsonl.gz

`RUNS` are labelled recordings with at least ten coding runs. Everything is read by the default
settings.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import orjson

from gateway.core.decision_settings import RUN_BOUNDARIES, Policy
from gateway.core.fold import RunFold, StepOutcome
from gateway.core.fsm import FSMState
from gateway.core.step import Step
from gateway.offline.playback import play
from gateway.offline.recordings import Recording, RunLabel, parse_recording, read_lines
from gateway.offline.replay import Work, policy_from_dict, replay_lines
from gateway.steering.guidance.situation import READER
from gateway.steering.transcript.steps import extract
from lab.signals import CODING
from steering_gateway_testing.planting import INNOCENTS, LOOPS, planted

Line = tuple[str, str]
SEED = 7
HOSTS = 30
"""Successful runs that a form is planted into."""
HOST_STEPS = 10
ROUNDS = 11
"""Times that a planted loop goes round: once, and ten repetitions."""
LEAVING_STEPS = 8
"""Steps after a loop within which a run should leave SLOW."""
SECOND_TASKS = 150
_ANSWER = {"role": "assistant", "content": "Done: the task is solved."}
"""What ends the first task of a conversation: recorded runs end with a call that submits."""
_HARD = (FSMState.SLOW, FSMState.SKIP)


def print_counts(paths: Sequence[Path]) -> None:
    """Print all tables."""
    lines = [(f"{file.name}:{number}", text) for file, number, text in read_lines(paths)]
    recordings = [parse_recording(text, place) for place, text in lines]
    planted_forms(recordings)
    second_tasks(recordings)
    gates(lines)
    dose(lines)


def planted_forms(recordings: Sequence[Recording]) -> None:
    """Alarms in healthy runs with planted loops and planted harmless work."""
    draw = random.Random(SEED)  # noqa: S311 - no secret
    healthy = [steps for each in recordings if (steps := _healthy(each))]
    hosts = draw.sample(healthy, min(HOSTS, len(healthy)))
    print(f"planted into {len(hosts)} of {len(healthy)} runs: alarm within 4, 10; acted; left")
    for name, plant in LOOPS.items():
        found = [_loop(plant(draw, host, ROUNDS - 1), host, draw) for host in hosts]
        counts = [sum(row[column] for row in found) for column in range(5)]
        print(f"  {name}: {counts[:3]} of {len(hosts)}, {counts[4]}/{counts[3]}")
    for name, innocent in INNOCENTS.items():
        seen = [_signs(innocent(draw, host), host, draw) for host in hosts]
        sums = [sum(row[column] for row in seen) for column in range(2)]
        print(f"  {name}: alarm {sums[0]}, SLOW {sums[1]}")


def _healthy(recording: Recording) -> list[Step]:
    """The steps of a successful run of some length without an alarm; empty for any other."""
    if not recording.label.success or recording.messages is None:
        return []
    steps = list(extract(recording.messages))
    if len(steps) < HOST_STEPS or not any(step.actions for step in steps):
        return []
    return [] if any(map(_alarms, _outcomes(steps))) else steps


def _outcomes(steps: Sequence[Step]) -> list[StepOutcome]:
    fold = RunFold(Policy(run_boundary="never"), READER)
    return [fold.push(step) for step in steps]


def _alarms(outcome: StepOutcome) -> bool:
    return bool(outcome.readings.fired) or outcome.state in _HARD


def _loop(inserted: list[Step], host: list[Step], draw: random.Random) -> tuple[bool, ...]:
    """Alarm within 4 and 10 repetitions; SLOW or escalated; whether it counts for the last column;
    and whether it then leaves SLOW in time."""
    position = draw.randrange(len(host) // 3, len(host) + 1)
    outcomes = _outcomes(planted(host, inserted, position))[position:]
    loop, after = outcomes[: len(inserted)], outcomes[len(inserted) :]
    four = len(inserted) * 5 // ROUNDS
    stuck = loop[-1].state in _HARD and len(after) >= LEAVING_STEPS
    left = any(each.state not in _HARD for each in after[:LEAVING_STEPS])
    return (
        any(each.readings.fired for each in loop[:four]),
        any(each.readings.fired for each in loop),
        any(each.state in _HARD or each.severity > 1 for each in loop),
        stuck,
        stuck and left,
    )


def _signs(inserted: list[Step], host: list[Step], draw: random.Random) -> tuple[bool, ...]:
    position = draw.randrange(len(host) // 3, len(host) + 1)
    outcomes = _outcomes(planted(host, inserted, position))
    return (
        any(each.readings.fired for each in outcomes),
        any(each.state in _HARD for each in outcomes),
    )


def gates(lines: Sequence[Line]) -> None:
    """In how many runs a monitor fires, and the composite is above a threshold."""
    work = Work(policy=policy_from_dict({"conversations": {"run_boundary": "never"}}), lines=True)
    runs = [orjson.loads(each.line) for each in replay_lines(lines, work) if each.line]
    runs = [run for run in runs if run["success"] is not None]
    rules: dict[str, Callable[[dict[str, Any]], bool]] = {
        "fired": lambda step: bool(step["fired"]),
        **{f"above {least}": partial(_above, least) for least in (0.15, 0.25, 0.35)},
        "gate": lambda step: bool(step["fired"]) or _above(0.15, step),
    }
    for name, holds in rules.items():
        for solved in (False, True):
            own = [any(map(holds, run["steps"])) for run in runs if run["success"] is solved]
            print(f"{name}, {'solved' if solved else 'failed'}: {sum(own)}/{len(own)}")


def _above(least: float, step: dict[str, Any]) -> bool:
    return bool(step["composite"] > least)


def second_tasks(recordings: Sequence[Recording]) -> None:
    """Alarms in solved coding runs that follow another run of the same model."""
    coding = [r for r in recordings if r.label.source.startswith(CODING) and r.messages]
    solved = [run for run in coding if run.label.success]
    draw = random.Random(SEED)  # noqa: S311 - no secret
    pairs = []
    for _ in range(SECOND_TASKS):
        run = draw.choice(solved)
        others = [
            other
            for other in coding
            if other.label.model == run.label.model and other.label.id != run.label.id
        ]
        pairs.append((draw.choice(others), run))
    for boundary in RUN_BOUNDARIES:
        policy = policy_from_dict({"conversations": {"run_boundary": boundary}})
        count = 0
        for first, second in pairs:
            before = [*(first.messages or ()), _ANSWER]
            both = Recording(label=RunLabel(id="both"), messages=[*before, *_task(second)])
            own = play(both, policy)["steps"][sum(m["role"] == "assistant" for m in before) :]
            count += any(_entry_alarms(step) for step in own)
        print(f"{boundary}: {count} of {len(pairs)} second tasks with an alarm")
    policy = policy_from_dict({})
    alone = sum(any(map(_entry_alarms, play(run, policy)["steps"])) for run in solved)
    print(f"alone: {alone} of {len(solved)}")


def _task(recording: Recording) -> list[Any]:
    """The messages of a run from the user's task on."""
    return [message for message in recording.messages or () if message["role"] != "system"]


def _entry_alarms(step: dict[str, Any]) -> bool:
    return bool(step["fired"]) or step["state"] in ("SLOW", "SKIP")


def dose(lines: Sequence[Line]) -> None:
    """How often the arm `on` acts."""
    work = Work(policy=policy_from_dict({"model_routing": {"SLOW": "dear", "SKIP": "dear"}}))
    runs = [each.played for each in replay_lines(lines, work) if each.played]
    steps = [step for run in runs for step in run["steps"] if step["state"] != "END"]
    _print_dose("on", len(runs), steps)


def _print_dose(name: str, runs: int, steps: Sequence[dict[str, Any]]) -> None:
    dear = _share(steps, lambda step: step["model"] == "dear")
    guided = _share(steps, lambda step: bool(step.get("guidance")))
    texts = sum(1 for item in _items(steps) if item["source"] != "skip")
    print(f"{name}: {len(steps)} steps, {dear:.1%} dear, {guided:.1%} guided, {texts / runs:.2f}")


def _share(steps: Sequence[dict[str, Any]], holds: Callable[[dict[str, Any]], bool]) -> float:
    return sum(map(holds, steps)) / len(steps)


def _items(steps: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for step in steps:
        yield from step.get("guidance", ())
