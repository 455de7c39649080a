"""A run's totals do not depend on how its calls are divided into commits."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.stores.commit_plan import repeated_call
from gateway.stores.controls import alarm_subject
from gateway.stores.records import StepRow
from gateway.stores.severity import severity_of, step_severity
from gateway.stores.totals import RunRecord, RunTotals
from gateway.stores.under_way import LiveRun
from steering_gateway_testing.store_conformance.records import a_chat, a_step

# Quarters add up exactly, in any order.
_quarters = st.integers(0, 4).map(lambda quarter: quarter / 4)
_costs = st.none() | _quarters
_calls = st.none() | st.builds(
    a_chat,
    model_asked=st.sampled_from(["a", "b"]),
    error=st.sampled_from([None, "timeout"]),
    cost_usd=_costs,
    cost_unsteered_usd=_costs,
)
_steps = st.builds(
    a_step,
    st.integers(0, 50),
    state=st.sampled_from(["FAST", "SLOW"]),
    composite=st.none() | _quarters,
    fired=st.sets(st.sampled_from(["streak", "hedge"])).map(tuple),
    failure_type=st.sampled_from([None, "loop"]),
    call=_calls,
)


def _fold(totals: RunTotals, steps: list[StepRow]) -> RunTotals:
    calls = [step.call for step in steps if step.call is not None]
    return totals.including(steps, calls, retries=0, injections=len(steps))


@given(st.lists(_steps, max_size=8), st.integers(0, 8))
def test_any_split_gives_the_same_totals(steps: list[StepRow], cut: int) -> None:
    """Adding all steps at once, or in two parts, gives the same totals."""
    assert _fold(RunTotals(), steps) == _fold(_fold(RunTotals(), steps[:cut]), steps[cut:])


@given(st.lists(_steps, max_size=8))
def test_totals_count_what_was_there(steps: list[StepRow]) -> None:
    """Every counter adds up to the steps or calls it counts, and the mean stays below the peak."""
    totals = _fold(RunTotals(), steps)
    assert sum(totals.states.values()) == len(steps)
    assert sum(totals.severity.values()) == totals.scored_steps
    assert sum(totals.models.values()) == totals.calls
    assert totals.composite_mean <= totals.composite_peak
    priced = [step.call for step in steps if step.call and step.call.cost_usd is not None]
    assert totals.unpriced_calls == totals.calls - len(priced)
    assert (totals.cost_usd is None) == (not priced)


@pytest.mark.parametrize(
    ("composite", "severity"),
    [
        (0.0, "low"),
        (math.nextafter(0.35, 0), "low"),
        (0.35, "warn"),
        (math.nextafter(0.6, 0), "warn"),
        (0.6, "danger"),
        (1.0, "danger"),
    ],
)
def test_severity_bands(composite: float, severity: str) -> None:
    """low < 0.35 <= warn < 0.6 <= danger (docs/names.md, the dashboard)."""
    assert severity_of(composite) == severity


def test_repeated_calls_add_up() -> None:
    """Three times the same request: two retries, three times the cost, the last reply."""
    once = a_chat("1")
    twice = repeated_call(once, a_chat("2", cost_usd=None, input_tokens=None))
    thrice = repeated_call(twice, a_chat("3", finish_reason="stop"))
    assert (thrice.request_id, thrice.finish_reason, thrice.retries) == ("3", "stop", 2)
    assert (thrice.cost_usd, thrice.input_tokens, thrice.output_tokens) == (0.5, 200, 60)
    assert thrice.attempts == 3


def test_a_caller_that_counts_retries_itself_is_not_counted_twice() -> None:
    """The call and the store count the same retries: the larger number is kept."""
    twice = repeated_call(a_chat("1"), a_chat("2", retries=1))
    assert repeated_call(twice, a_chat("3", retries=2)).retries == 2


@pytest.mark.parametrize(
    ("composite", "severity"), [(None, "low"), (0.1, "low"), (0.4, "warn"), (0.9, "danger")]
)
def test_the_severity_of_a_step_is_that_of_its_composite(
    composite: float | None, severity: str
) -> None:
    """While no monitor fires; a step without one is no trouble."""
    assert step_severity(a_step(composite=composite, fired=())) == severity


def test_a_run_under_way_gives_the_evidence_of_what_fires() -> None:
    """Not that of monitors that do not; before the first scored step there is none."""
    step = a_step(fired=("streak", "hedge"), evidence={"streak": "3 times", "entropy": "low"})
    fields: dict[str, Any] = dict.fromkeys(RunRecord.__struct_fields__, "")
    run = RunRecord(**fields)
    assert LiveRun(run=run, newest=step).reasons == {"streak": "3 times", "hedge": ""}
    assert LiveRun(run=run).reasons == {}
    assert LiveRun(run=run).severity == "low"


def test_kinds_of_alarms_of_two_projects_have_two_subjects() -> None:
    """Also where a name has a slash in it."""
    names = [("a/b", "c", "streak"), ("a", "b/c", "streak"), ("a", "b", "c/streak")]
    subjects = [alarm_subject(*each) for each in names]
    assert len(set(subjects)) == len(names)
    assert alarm_subject("acme", "shop", "streak") == "alarm/acme/shop/streak"
