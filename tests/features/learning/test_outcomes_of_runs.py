"""What is read off runs that are over: what came after a decision, and their outcomes."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.features.learning.life_cycle import near_outcome
from gateway.features.learning.verdicts import best, implicit
from gateway.stores.learning import OutcomeRow
from lab.learning import measure
from steering_gateway_testing.store_conformance.learning import a_decision
from tests.features.learning.runs import read, shell

DEVELOPMENT_RUNS = Path(__file__).parents[4] / "shared/data/trajectories-dev.jsonl.gz"


def test_what_came_after_a_decision() -> None:
    """The failure came again, and the call worked two calls later; an open window says nothing."""
    calls = [
        shell("make x", "bash: make: command not found"),
        shell("make y", "bash: make: command not found"),
        shell("make z", "made"),
    ]
    failure = read(calls)[0].reading.failure
    assert failure is not None
    decision = a_decision("r", 1, pattern_id="p", key=failure.key)
    assert near_outcome(decision, read(calls), ended=False, last_step=3) is None
    near = near_outcome(decision, read(calls), ended=True, last_step=3)
    assert near is not None
    assert (near.recurred, near.calls_to_success, near.steps_left) == (True, 2, 2)


def test_outcomes_that_can_be_read_off() -> None:
    """Tests before an answer, a correction, a run left while it fails; scripts are no tests."""
    passed = read([shell("python -m pytest tests", "3 passed in 0.1s")])
    failed = read([shell("pytest", "E  assert 1 == 2\n1 failed, 2 passed in 0.2s")])
    script = read([shell("python reproduce.py", "ok")])
    assert implicit(passed, answered=True) == [("result", "success", "step 1", 0.83)]
    assert implicit(failed, answered=True) == [("result", "failure", "step 1", 0.83)]
    assert implicit(script, answered=True) == []
    assert implicit(failed, answered=False) == [("abandoned", "failure", "step 1", 0.93)]


def test_the_best_outcome_is_the_runs() -> None:
    """What was told beats what was read off; what is too often wrong is not used."""

    def row(source: str, verdict: str, weight: float = 1.0) -> OutcomeRow:
        return OutcomeRow(
            run_id="r", tenant="t", source=source, verdict=verdict, weight=weight, at=0.0
        )

    rows = [row("abandoned", "failure", 0.93), row("moved_on", "success", 0.0)]
    assert best(rows[1:]) is None
    assert best(rows) == rows[0]
    result = row("result", "success", 0.83)
    assert best([*rows, result]) == result
    told = [row("told_header", "failure"), row("told_api", "success")]
    assert best([*rows, result, *told]) == told[1]


@pytest.mark.nightly
@pytest.mark.skipif(not DEVELOPMENT_RUNS.exists(), reason="the development runs are not here")
def test_the_development_runs() -> None:
    """They are read at under 20 ms CPU per 100 steps; outcomes are as precise as stated."""
    found = measure([DEVELOPMENT_RUNS])
    assert found["cpu_ms_per_100_steps"] < 20
    assert found["outcomes"]["result"]["precision"] >= 0.7
