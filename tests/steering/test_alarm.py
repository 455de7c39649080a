"""What an alarm does: difficulty, escalation, texts that are ready again."""

from __future__ import annotations

import random

import pytest

from gateway.core.decision_settings import Policy
from gateway.core.fold import RunFold
from gateway.core.fsm import FSMState
from gateway.core.guidance_plan import RECOVERED_STEPS, note
from gateway.core.guidance_state import GuidanceState
from gateway.core.ledger.ledger import Ledger
from gateway.core.monitors import Alarm, MonitorSettings, Readings, make_suite
from gateway.core.monitors.alarms import alarm_severity
from gateway.core.routing import Routes, RoutingSettings
from gateway.core.scoring.heuristic import heuristic_score
from gateway.core.scoring.scorer import DifficultySettings
from gateway.core.steer import CallFacts, RunMemory, RunPosition, SteeringRules, propose
from gateway.steering.evidence.action_facts import describe
from gateway.steering.guidance.situation import READER
from steering_gateway_testing.planting import LOOPS, polling
from tests.steering.builders import acts
from tests.steering.robust.test_planted import coding_run

RULES = SteeringRules(reader=READER, routes=Routes(by_state={"FAST": "small", "SLOW": "strong"}))
CALL = CallFacts(requested="own")


def model_of(fold: RunFold, rules: SteeringRules = RULES) -> str:
    """The model of the call after everything that was folded."""
    call = CallFacts(requested="own")
    return propose(rules, RunMemory(), RunPosition.of(fold), call).routed.model


@pytest.mark.parametrize("name", LOOPS)
def test_a_loop_escalates_at_once(name: str) -> None:
    """Within five repetitions the strong model is asked, before the state is SLOW."""
    healthy, fold = coding_run(1), RunFold(Policy(), READER)
    for each in [*healthy, *LOOPS[name](random.Random(1), healthy, 5)]:
        outcome = fold.push(each)
    assert outcome.difficulty > Policy().fsm.slow_threshold
    assert outcome.severity >= 2
    assert model_of(fold) == "strong"
    routing = RoutingSettings(escalate_at_severity=0)
    never = SteeringRules(reader=READER, routes=RULES.routes, routing=routing)
    assert outcome.state is FSMState.SLOW or model_of(fold, never) == "own"


def test_severity_grows_while_the_alarm_lasts() -> None:
    """1 when it begins, 2 from the second step on, 3 from the fourth; 0 without one."""
    assert [alarm_severity(steps) for steps in range(6)] == [0, 1, 2, 2, 3, 3]


def test_the_reference_formula_stays_exact() -> None:
    """Under scorer heuristic an alarm does not touch the difficulty."""
    policy = Policy(difficulty=DifficultySettings(scorer="heuristic"))
    fold = RunFold(policy, READER)
    for each in LOOPS["identical call"](random.Random(1), coding_run(1), 6):
        outcome = fold.push(each)
    assert outcome.readings.fired
    assert outcome.difficulty == heuristic_score(outcome.step.thought)


def test_a_polled_job_is_not_left_to_the_cheap_model() -> None:
    """In FAST the model of NORMAL is kept while the run waits."""
    fold = RunFold(Policy(), READER)
    fold.state = FSMState.FAST
    for each in polling(random.Random(1), [], 3)[:2]:
        fold.push(each)
    assert fold.state is FSMState.FAST
    assert fold.outcomes[-1].observed.waits
    assert model_of(fold) == "own"


def test_texts_are_ready_again_after_recovery() -> None:
    """An alarm after a quiet stretch begins at the first severity; one that goes on does not."""
    fired = Readings(scores={"streak": 1.0}, fired=("streak",), failure_type="loop")
    state = GuidanceState(fired_step=4, severities={"loop": 3})
    assert note(state, 5, fired).severities == {"loop": 3}
    assert note(state, 4 + RECOVERED_STEPS, fired).severities == {"loop": 3}
    assert note(state, 5 + RECOVERED_STEPS, fired).severities == {}


def test_a_monitor_that_fires_is_an_alarm_with_its_steps() -> None:
    """The alarm keeps its entry and its first step while the trouble goes on, and names both."""
    suite = make_suite(MonitorSettings())
    ledger = Ledger(describe)
    seen: list[Alarm] = []
    for each in [acts(arguments='{"command": "ls"}', observation="a.py")] * 6:
        suite.push(ledger.observe(each))
        seen += suite.readings().alarms
    assert {alarm.monitor for alarm in seen} == {"streak"}
    assert len({alarm.entry for alarm in seen}) == 1
    assert seen[-1].first_step < seen[-1].newest_step == 6
    assert f"steps {seen[-1].first_step} to 6" in seen[-1].sentence
