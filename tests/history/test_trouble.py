"""Stretches of trouble: where they begin and end, whose sign they carry, what they cost."""

from __future__ import annotations

import itertools
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gateway.history.find import identify
from gateway.history.log_file import LogFile
from gateway.history.reading import SessionReading, read_session
from gateway.history.session import HumanTurn
from gateway.history.summary import summarise
from gateway.history.trouble import ReadStep, stretches_of
from gateway.steering.evidence.observation import RunObserver
from gateway.steering.policy import Policy
from gateway.steering.transcript.steps import Step
from tests.history.sessions import INTERRUPTED, REJECTED, Log, looping, smooth

_OBSERVED = RunObserver().observe(Step(index=0))


def read(log: Log, folder: Any) -> SessionReading:
    """The reading of a session, through its file."""
    path = log.write(folder)
    (session,) = identify(path).sessions(LogFile(path))
    return read_session(session, Policy(), str(path))


def step(index: int, *, alarm: bool = False, trouble: str | None = None) -> ReadStep:
    """One read step, whose message is the one after the messages of the steps before it."""
    return ReadStep(
        index=index,
        position=2 * index + 1,
        is_alarm=alarm,
        trouble=trouble,
        fired=(),
        evidence={},
        observed=_OBSERVED,
    )


def test_a_loop_is_one_stretch_that_ends_with_the_interruption(tmp_path: Any) -> None:
    """Its cost is that of all its steps, its reason the monitor's, its end the person's words."""
    reading = read(looping(), tmp_path)
    (stretch,) = reading.stretches
    assert (stretch.first, stretch.last) == (0, 11)
    assert stretch.alarmed
    assert stretch.human == "interrupt"
    assert stretch.words == "stop, the fixture is wrong, not the cart"
    assert "fails as before" in stretch.happened
    assert stretch.tokens == 12 * 1100
    assert 0 < stretch.cost[0] <= stretch.usd


def test_a_smooth_session_has_none(tmp_path: Any) -> None:
    """No sign, no stretch."""
    reading = read(smooth(), tmp_path)
    assert reading.stretches == ()
    assert reading.alarms == ()


def test_a_rejected_call_is_the_step_that_made_it(tmp_path: Any) -> None:
    """The steps before it were fine; words behind the rejection are its reason."""
    log = Log().user("Publish the page.").bash("ls", "index.html").bash("cat index.html", "<p>")
    log.answer("", ("Bash", {"command": "git push --force"}))
    log.result(f"{REJECTED}STOP what you are doing.", error=True)
    log.user("[Request interrupted by user for tool use]").user("never force-push")
    (stretch,) = read(log, tmp_path).stretches
    assert (stretch.first, stretch.last, stretch.human) == (2, 2, "reject")
    assert stretch.words == "never force-push"
    assert stretch.happened == "Bash: git push --force"


def test_an_accepted_plan_is_no_trouble(tmp_path: Any) -> None:
    """A plan that starts afresh is recorded as a rejected call and an interruption."""
    log = Log().user("Plan it.").answer("", ("ExitPlanMode", {"plan": "# Rename"}))
    log.result(f"{REJECTED}STOP what you are doing.", error=True).user(INTERRUPTED)
    log.user("Implement the following plan:\n\n# Rename")
    reading = read(log, tmp_path)
    assert reading.acts("reject") == 1
    assert reading.stretches == ()


def test_a_person_in_between_ends_a_stretch() -> None:
    """Trouble before and after a message of the person is not the same trouble."""
    steps = [step(0, alarm=True), step(1, trouble="no news"), step(2, alarm=True)]
    turn = HumanTurn(kind="message", position=4, text="go on")
    found = stretches_of(steps, [turn], [s.position for s in steps], {})
    assert [(each.first, each.last) for each in found] == [(0, 1), (2, 2)]


_SIGNS = st.lists(st.sampled_from(["", "trouble", "alarm"]), max_size=40)
_TURNS = st.lists(
    st.tuples(st.sampled_from(["message", "interrupt", "reject"]), st.integers(0, 90)), max_size=8
)


@given(_SIGNS, _TURNS)
def test_no_step_counts_twice(signs: list[str], acts: list[tuple[Any, int]]) -> None:
    """Stretches are in order, none overlaps another, and each costs what its steps cost."""
    steps = [
        step(index, alarm=sign == "alarm", trouble="no news" if sign == "trouble" else None)
        for index, sign in enumerate(signs)
    ]
    turns = [
        HumanTurn(kind=kind, position=position, corrects=kind != "message")
        for kind, position in sorted(acts, key=lambda act: act[1])
    ]
    costs = {each.index: (10, 1.0) for each in steps}
    found = stretches_of(steps, turns, [each.position for each in steps], costs)
    assert all(one.last < other.first for one, other in itertools.pairwise(found))
    for each in found:
        assert 0 <= each.first <= each.last < len(steps)
        assert each.usd == each.steps
        assert each.cost[0] <= each.usd
    alarmed = {each.index for each in steps if each.is_alarm}
    assert alarmed <= {index for each in found for index in each.indices}


def test_the_summary_counts_an_answer_once(tmp_path: Any) -> None:
    """Sums by project and model are those of the whole; a copy adds nothing."""
    first, second = read(looping(), tmp_path), read(smooth(), tmp_path)
    summary = summarise([first, second, first])
    assert summary.read.copies == 1
    assert summary.total.steps == 16
    assert sum(sums.steps for sums in summary.parts["project"].values()) == 16
    assert (
        sum(sums.tokens.total for sums in summary.parts["model"].values())
        == summary.total.tokens.total
    )
    low, high = summary.trouble.cost
    assert 0 < low <= high < summary.total.usd
