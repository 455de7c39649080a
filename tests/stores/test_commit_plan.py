"""A commit's plan: the same rows and totals however a run's steps are divided into commits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from gateway.stores.commit_plan import StoredStep, new_injections, plan_steps, settled_outcome
from gateway.stores.records import InjectionRow, PromptMessage, RunUpdate, StepContent, StepRow
from gateway.stores.totals import RunTotals
from steering_gateway_testing.store_conformance.records import a_chat, a_step

_quarters = st.integers(0, 4).map(lambda quarter: quarter / 4)
_texts = st.sampled_from(["", "a", "b"])
_contents = st.none() | st.builds(
    StepContent,
    messages=_texts.map(lambda text: (PromptMessage(role="user", text=text),)),
    thought=_texts,
    reply_text=_texts,
)
_calls = st.none() | st.builds(
    a_chat,
    st.sampled_from(["r1", "r2"]),
    latency_s=st.sampled_from([0.25, 0.5]),
    cost_usd=st.none() | _quarters,
    usage_estimated=st.booleans(),
)


def _step(scored: bool, step: StepRow) -> StepRow:
    """A scorer that failed leaves nothing: neither a composite nor what it would have found."""
    return step if scored else replace(step, composite=None, fired=(), failure_type=None)


_steps = st.builds(
    _step,
    st.booleans(),
    st.builds(
        a_step,
        st.integers(0, 1),
        state=st.sampled_from(["FAST", "SLOW"]),
        composite=_quarters,
        fired=st.sets(st.sampled_from(["hedge", "streak"])).map(tuple),
        failure_type=st.sampled_from([None, "loop"]),
        call=_calls,
        content=_contents,
    ),
)


@dataclass
class _Store:
    """A store that only writes what a plan says."""

    rows: dict[int, StepRow] = field(default_factory=dict)
    totals: RunTotals = field(default_factory=RunTotals)

    def commit(self, steps: Sequence[StepRow]) -> None:
        """Write one call."""
        stored = {
            index: StoredStep(
                state=row.state,
                scored=row.composite is not None,
                call=row.call,
                content=row.content,
            )
            for index, row in self.rows.items()
        }
        plan = plan_steps(steps, stored)
        for step in plan.fresh:
            assert step.step_index not in self.rows
            self.rows[step.step_index] = step
        for late in plan.late:
            row = self.rows[late.step.step_index]
            self.rows[row.step_index] = replace(
                late.step, at=row.at, call=row.call, content=late.content
            )
        for index, (call, content) in plan.calls.items():
            row = self.rows[index]
            self.rows[index] = replace(row, call=call, content=content or row.content)
        self.totals = plan.totals(self.totals, [])

    def contents(self) -> tuple[dict[int, StepRow], RunTotals]:
        """Rows and totals; a state that no step has any more does not count."""
        states = {name: count for name, count in self.totals.states.items() if count}
        return self.rows, replace(self.totals, states=states)


@given(st.lists(_steps, max_size=8), st.lists(st.integers(0, 8), max_size=3))
def test_any_division_into_commits_stores_the_same(steps: list[StepRow], cuts: list[int]) -> None:
    """Whether steps come in one call, twice in it, or in one call after the other."""
    whole, parts = _Store(), _Store()
    whole.commit(steps)
    places = [0, *sorted(cuts), len(steps)]
    for start, end in pairwise(places):
        parts.commit(steps[start:end])
    assert parts.contents() == whole.contents()


@given(st.lists(_steps, max_size=4, unique_by=lambda step: step.step_index))
def test_a_commit_that_is_repeated_changes_nothing(steps: list[StepRow]) -> None:
    """It is repeated when nobody knows whether it succeeded."""
    store = _Store()
    store.commit(steps)
    before = (dict(store.rows), store.totals)
    store.commit(steps)
    assert (store.rows, store.totals) == before


@given(st.lists(_steps, max_size=8))
def test_the_totals_are_those_of_the_rows(steps: list[StepRow]) -> None:
    """Each stored step is counted once, with its state and its scores."""
    store = _Store()
    store.commit(steps)
    rows, totals = store.contents()
    assert sum(totals.states.values()) == len(rows)
    composites = [row.composite for row in rows.values() if row.composite is not None]
    assert totals.scored_steps == len(composites)
    assert totals.composite_sum == sum(composites)
    costs = [row.call.cost_usd for row in rows.values() if row.call and row.call.cost_usd]
    assert (totals.cost_usd or 0.0) == sum(costs)


def test_late_scores_keep_the_texts_of_the_call() -> None:
    """The step was not read when its call was made: the reply remains, the thought is added."""
    call = a_chat("r1")
    asked = StepContent(messages=(PromptMessage(role="user", text="do"),), reply_text="done")
    stored = StoredStep(state="FAST", scored=False, call=call, content=asked)
    step = a_step(1, state="SLOW", composite=0.5, content=StepContent(thought="hm"))
    plan = plan_steps([replace(step, call=None)], {1: stored})
    (late,) = plan.late
    assert late.content == replace(asked, thought="hm")
    assert (plan.fresh, plan.calls, plan.called) == ([], {}, [])
    counted = RunTotals(steps=1, states={"FAST": 1}).states
    totals = plan.totals(RunTotals(steps=1, states=counted), [])
    assert totals.states == {"FAST": 0, "SLOW": 1}


def test_late_scores_after_a_call_in_one_commit_keep_the_texts_of_both() -> None:
    """The stored row has neither: the texts of the call, and the thought that was scored."""
    asked = StepContent(reply_text="done")
    made = a_step(1, composite=None, call=a_chat("r1"), content=asked)
    scored = replace(a_step(1, composite=0.5, content=StepContent(thought="hm")), call=None)
    together, apart = _Store(), _Store()
    for store in (together, apart):
        store.commit([replace(made, call=None, content=None)])
    together.commit([made, scored])
    apart.commit([made])
    apart.commit([scored])
    assert together.contents() == apart.contents()
    assert together.rows[1].content == replace(asked, thought="hm")


def test_guidance_is_recorded_once() -> None:
    """By step and ordinal, also within one call."""
    rows = [
        InjectionRow(run_id="r", step_index=1, ordinal=ordinal, source="e1")
        for ordinal in (0, 1, 1)
    ]
    assert new_injections(rows, {(1, 0)}) == rows[1:2]


def test_a_derived_outcome_replaces_no_reported_one() -> None:
    """A reported one replaces any, and no outcome leaves what is stored."""
    run = RunUpdate(id="r", started_at=0.0, updated_at=0.0)
    derived = replace(run, outcome="failure", outcome_source="derived")
    reported = replace(run, outcome="other", outcome_source="api")
    assert settled_outcome(("success", "api"), derived) == ("success", "api")
    assert settled_outcome(("success", "derived"), derived) == ("failure", "derived")
    assert settled_outcome(("success", "api"), reported) == ("other", "api")
    assert settled_outcome(("success", "api"), run) == ("success", "api")
