"""Records of a run: steps, traces, assessments, E-traces."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from gateway.steering.fold import RunFold, StepOutcome
from gateway.steering.fsm import FSMState
from gateway.steering.records import (
    ETrace,
    StepAssessment,
    StepRecord,
    TraceState,
    step_assessment,
    step_record,
    trace_state,
)
from gateway.steering.steps import Action, Step
from tests.steering.builders import REFERENCE, acts, thinks


def outcomes(*steps: Step) -> list[StepOutcome]:
    run = RunFold(REFERENCE)
    return [run.push(step) for step in steps]


def defaults(kind: Any, **required: Any) -> dict[str, Any]:
    value = kind(**required)
    return {field.name: getattr(value, field.name) for field in dataclasses.fields(kind)}


def test_the_fields_of_an_e_trace() -> None:
    """S4: tier, similarity, pattern_id, fields, failure_type, model_family, level, source."""
    assert defaults(ETrace, tier="e1") == {
        "tier": "e1",
        "similarity": 0.0,
        "pattern_id": "",
        "fields": {},
        "failure_type": None,
        "model_family": "",
        "level": "e1",
        "source_trace_id": None,
    }


def test_level_and_tier_carry_the_same_value() -> None:
    """`level` is an old name of `tier`; a contradiction is refused, as is an unknown tier."""
    assert ETrace(tier="e2", level="e2").level == "e2"
    with pytest.raises(ValueError, match="level: 'e1' differs from tier 'e2'"):
        ETrace(tier="e2", level="e1")
    with pytest.raises(ValueError, match="tier: 'E1' is none of e1, e2, e3"):
        ETrace(tier="E1")


def test_the_fields_of_a_step_record() -> None:
    """Reference 10: state is the state after scoring, INIT by default."""
    assert defaults(StepRecord, step_index=1, thought="t") == {
        "step_index": 1,
        "thought": "t",
        "action": None,
        "action_input": None,
        "observation": None,
        "difficulty": 0.0,
        "state": FSMState.INIT,
        "tokens_used": 0,
    }


def test_the_fields_of_a_trace_state() -> None:
    """Reference 10."""
    assert defaults(TraceState, trace_id="r") == {
        "trace_id": "r",
        "steps": [],
        "current_state": FSMState.INIT,
        "difficulty_history": [],
        "total_tokens": 0,
        "token_budget": None,
    }


def test_the_fields_of_a_step_assessment() -> None:
    """Reference 10 and S4."""
    assert defaults(StepAssessment, difficulty=0.5, state=FSMState.NORMAL) == {
        "difficulty": 0.5,
        "state": FSMState.NORMAL,
        "loop_detected": False,
        "loop_count": 0,
        "budget_used": 0.0,
        "e1_match": None,
        "e2_matches": [],
        "injections": [],
    }


def test_a_scored_step_as_a_record() -> None:
    """C6: the first record has step_index 1 and state NORMAL; of parallel calls the last shows."""
    step = Step(
        index=4,
        thought="t",
        actions=(Action(name="a"), Action(name="b", arguments="x", observation="y")),
        tokens=7,
    )
    (outcome,) = outcomes(step)
    assert step_record(outcome) == StepRecord(
        step_index=1,
        thought="t",
        action="b",
        action_input="x",
        observation="y",
        difficulty=outcome.difficulty,
        state=FSMState.NORMAL,
        tokens_used=7,
    )
    (silent,) = outcomes(thinks("t"))
    assert (step_record(silent).action, step_record(silent).observation) == (None, None)


def test_a_trace_from_its_outcomes() -> None:
    """Records, history and tokens add up; INIT before the first score, END once frozen (C3)."""
    scored = outcomes(thinks("maybe"), dataclasses.replace(acts("ls"), tokens=30))
    trace = trace_state("r", scored, token_budget=120)
    assert [record.step_index for record in trace.steps] == [1, 2]
    assert trace.difficulty_history == [outcome.difficulty for outcome in scored]
    assert (trace.current_state, trace.total_tokens) == (FSMState.NORMAL, 30)
    assert trace_state("r", scored, ended=True).current_state is FSMState.END
    assert trace_state("r", []).current_state is FSMState.INIT


@pytest.mark.parametrize(
    ("tokens", "budget", "used"), [(30, 120, 0.25), (500, 120, 1.0), (5, 0, 0.0), (5, -1, 0.0)]
)
def test_the_budget_used(tokens: int, budget: int, used: float) -> None:
    """min(total / budget, 1), 0 without a budget; it moves no state (C23)."""
    trace = TraceState(trace_id="r", total_tokens=tokens, token_budget=budget)
    assert trace.budget_used == used
    assert TraceState(trace_id="r", total_tokens=tokens).budget_used == 0.0


def test_an_assessment_is_built_for_each_step() -> None:
    """C27: difficulty, state, loops, best e1 match, e2 and e3 matches by falling similarity."""
    scored = outcomes(*[acts("ls")] * 4)
    matches = [
        ETrace(tier="e3", similarity=0.4),
        ETrace(tier="e1", similarity=0.7, pattern_id="low"),
        ETrace(tier="e2", similarity=0.9),
        ETrace(tier="e1", similarity=0.8, pattern_id="high"),
    ]
    found = step_assessment(scored, matches=matches, injections=["text"], budget_used=0.5)
    assert (found.difficulty, found.state) == (scored[-1].difficulty, FSMState.NORMAL)
    assert (found.loop_detected, found.loop_count) == (True, 2)
    assert found.e1_match == matches[3]
    assert [match.tier for match in found.e2_matches] == ["e2", "e3"]
    assert (found.injections, found.budget_used) == (["text"], 0.5)


def test_a_step_without_a_loop() -> None:
    """No fired streak, no loop; no pattern, no match."""
    found = step_assessment(outcomes(acts("ls")))
    assert (found.loop_detected, found.loop_count, found.e1_match) == (False, 0, None)
    everything = step_assessment(outcomes(*[acts("ls")] * 2)[:1])
    assert everything.e2_matches == []


def test_a_loop_from_the_first_step_on() -> None:
    """Three parallel calls of one tool are a loop of one step."""
    step = Step(index=0, actions=(Action(name="ls"),) * 3)
    assert step_assessment(outcomes(step)).loop_count == 1
