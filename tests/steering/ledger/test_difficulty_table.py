"""Difficulty as one table over the ledger: values, reasons, and the states that follow."""

from __future__ import annotations

import pytest

from gateway.core.decision_settings import Policy
from gateway.core.fold import RunFold, StepOutcome
from gateway.core.fsm import FSMState
from gateway.core.step import Step
from gateway.steering.guidance.situation import READER
from steering_gateway_testing.planting import step
from tests.steering.ledger.test_ledger import edit, ran

TAKEN = "Error: the table is taken"


def play(steps: list[Step]) -> list[StepOutcome]:
    """The outcomes of a run."""
    fold = RunFold(Policy(), READER)
    return [fold.push(each) for each in steps]


def test_a_failure_that_comes_again_climbs_and_says_so() -> None:
    """Over 0.6 at the second, over 0.85 only while the same goes on and on."""
    found = play([ran()] * 7)
    values = [each.difficulty for each in found]
    assert values == sorted(values)
    assert values[0] < 0.5 < 0.6 < values[1] < values[2] <= 0.8
    assert values[2] < 0.85 < values[5]
    assert found[2].reason == (
        "third failure of `pytest tests/test_a.py` in the same way since step 1, "
        "no file change seen since step 2"
    )


def test_a_change_in_between_is_said() -> None:
    """Then the reason names the try before."""
    found = play([ran(), edit(1), ran()])
    assert found[2].reason == (
        "second failure of `pytest tests/test_a.py` in the same way since step 1, "
        "the one before at step 1"
    )
    assert found[1].difficulty < 0.2


def test_the_third_failure_weighs_more_where_nothing_was_changed() -> None:
    """0.8 instead of 0.75; at the second it makes no difference."""
    idle = [each.difficulty for each in play([ran()] * 3)]
    busy = [each.difficulty for each in play([ran(), edit(1), ran(), edit(2), ran()])]
    assert idle[1:] == [0.65, 0.8]
    assert busy[2::2] == [0.65, 0.75]


def test_recovery_is_remembered_for_two_steps() -> None:
    """The first success after a repeated failure is 0.5 to 0.6, the second below 0.5."""
    passed = ran("1 passed in 0.31s")
    fresh = [step("Read", {"file_path": f"{n}.py"}, f"text {n} of it") for n in range(2)]
    found = play([ran(), ran(), passed, *fresh])
    assert 0.5 <= found[2].difficulty <= 0.6
    assert found[2].reason == "a success after 2 failures of `pytest tests/test_a.py`"
    assert found[3].difficulty < 0.5
    assert found[4].difficulty < 0.2


def test_failures_of_one_kind_are_not_counted_as_those_of_one_call() -> None:
    """The newest call is named as the newest of them."""
    said = "Error: element is not attached"
    clicks = [step("browser_click", {"ref": ref}, said) for ref in ("e49", "e50")]
    found = play([*clicks, step("Read", {"file_path": "a.py"}, "text of it")])
    assert found[2].reason == (
        "after 2 failures of one kind, the newest of `browser_click e50`, the last one at step 2"
    )


@pytest.mark.parametrize(
    ("tool", "answers", "says"),
    [
        ("reserve", [TAKEN, "Error: no such hall"], "fails or is denied"),
        ("reserve", ['{"status": "denied"}'] * 2, "is answered with no or nothing"),
        ("charge", ["Error 429: too many requests, try again later"] * 2, "is put off"),
    ],
)
def test_calls_of_one_tool_that_fail_in_different_ways(
    tool: str, answers: list[str], says: str
) -> None:
    """The reason says whether they fail, are answered with no, or are put off."""
    found = play([step(tool, {"at": number}, each) for number, each in enumerate(answers)])
    assert found[1].reason == (
        f"a call of {tool} {says} for the second time since step 1: `{tool} 1`, "
        "no file change seen since step 1"
    )


def test_the_first_failure_is_named_by_what_it_reports() -> None:
    """Where nothing is reported, by the refusal."""
    (failed,) = play([step("reserve", {"at": 0}, TAKEN)])
    assert failed.reason == f"`reserve 0` reports {TAKEN}"
    several = "x.c:1: error: unknown type a\nx.c:2: error: unknown type b"
    (compiled,) = play([step("bash", {"command": "make"}, several)])
    assert compiled.reason == "`make` reports x.c:#: error: unknown type b"
    (refused,) = play([step("reserve", {"at": 0}, '{"status": "denied"}')])
    assert refused.reason == "a call of reserve is answered with no or nothing: `reserve 0`"


def test_six_easy_steps_are_fast() -> None:
    """Each brings something that the run did not have."""
    found = play([step("Read", {"file_path": f"{n}.py"}, f"text {n} of it") for n in range(7)])
    assert [each.state for each in found[4:6]] == [FSMState.NORMAL, FSMState.FAST]


def test_five_hard_steps_are_slow_and_thirty_five_very_hard_ones_skip() -> None:
    """One failing test, run on and on."""
    found = play([ran()] * 50)
    states = [each.state for each in found]
    assert states.index(FSMState.SLOW) == 5
    assert FSMState.SKIP in states
    assert states.index(FSMState.SKIP) >= 35


def test_a_step_that_waits_is_neither_easy_nor_hard() -> None:
    """It says that it waits."""
    found = play([step("get_job_status", {"id": 4}, '{"status": "running"}')] * 3)
    assert {each.difficulty for each in found} == {0.3}
    assert found[-1].reason == "waits for something that is not there yet"
