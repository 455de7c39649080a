"""Loops planted into healthy runs are found, innocent look-alikes are left alone."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from gateway.core.ledger.ledger import Ledger
from gateway.core.monitors import MonitorSettings, make_suite
from gateway.core.step import Step
from gateway.offline.recordings import parse_recording, read_lines
from gateway.steering.evidence.action_facts import describe
from gateway.steering.transcript.steps import extract
from steering_gateway_testing.planting import INNOCENTS, LOOPS, edit_test_edit, planted, step
from tests.examples import by_day

SAMPLE = Path(__file__).parents[2] / "replays" / "sample.jsonl.gz"
REPETITIONS = 6
FOUND = 0.95
FALSE = 0.02


def coding_run(seed: int) -> list[Step]:
    """A healthy run of a coding agent: look, read, edit and test, with less failing each time."""
    rng = random.Random(seed)
    looks = [
        step(
            "bash", {"command": f"grep -rn handler_{i} src"}, f"src/m{i}.py:{i + 3}: handler_{i}()"
        )
        for i in range(3)
    ]
    reads = [
        step(
            "read_file", {"path": f"src/module_{i}.py"}, f"def handler_{i}(): return {rng.random()}"
        )
        for i in range(4)
    ]
    return [*looks, *reads, *edit_test_edit(rng, [], 3)]


@pytest.fixture(scope="module")
def healthy_runs() -> list[list[Step]]:
    """Successful runs of the sample that act, and coding runs, none with an alarm of its own."""
    runs = [coding_run(seed) for seed in range(10)]
    for file, number, text in read_lines([SAMPLE]):
        recording = parse_recording(text, f"{file.name}:{number}")
        if recording.label.success and recording.messages is not None:
            steps = list(extract(recording.messages))
            if sum(bool(s.actions) for s in steps) >= 3:
                runs.append(steps)
    return [run for run in runs if first_alarm(run, 0) is None]


def first_alarm(steps: Sequence[Step], start: int) -> int | None:
    """Index of the first step from `start` on with a fired monitor."""
    suite = make_suite(MonitorSettings(suite="robust"))
    ledger = Ledger(describe)
    for index, each in enumerate(steps):
        suite.push(ledger.observe(each))
        if index >= start and suite.readings().fired:
            return index
    return None


def test_healthy_runs_are_many_and_mostly_quiet(healthy_runs: list[list[Step]]) -> None:
    """The hosts of the tests below are real runs."""
    assert len(healthy_runs) > 40


@pytest.mark.parametrize("name", by_day(LOOPS, 4))
def test_planted_loops_are_found_within_six_repetitions(
    name: str, healthy_runs: list[list[Step]]
) -> None:
    """A loop in the middle of a healthy run fires a monitor within its seventh round."""
    rng = random.Random(7)
    found = 0
    for run in healthy_runs:
        inserted = LOOPS[name](rng, run, REPETITIONS)
        position = rng.randrange(len(run) // 3, len(run) + 1)
        steps = planted(run, inserted, position)[: position + len(inserted)]
        found += first_alarm(steps, position) is not None
    assert found >= FOUND * len(healthy_runs)


@pytest.mark.parametrize("name", INNOCENTS)
def test_planted_innocents_raise_no_alarm(name: str, healthy_runs: list[list[Step]]) -> None:
    """Waiting, reading on, paging, retrying after a refusal and working tests off do not fire."""
    rng = random.Random(11)
    alarms = 0
    for run in healthy_runs:
        inserted = INNOCENTS[name](rng, run)
        position = rng.randrange(len(run) // 3, len(run) + 1)
        alarms += first_alarm(planted(run, inserted, position), 0) is not None
    assert alarms <= FALSE * len(healthy_runs)


def test_recovery_silences_the_alarm() -> None:
    """After a loop, healthy work brings every score back below the threshold."""
    rng = random.Random(3)
    run = coding_run(1)
    suite = make_suite(MonitorSettings(suite="robust"))
    ledger = Ledger(describe)
    for each in [*run, *LOOPS["identical call"](rng, run, 6)]:
        suite.push(ledger.observe(each))
    assert suite.readings().fired == ("streak",)
    for each in coding_run(2):
        suite.push(ledger.observe(each))
    assert suite.readings().fired == ()
