"""The control arm: chance decides when, and nothing else about an intervention changes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.acting import ActionSignal, ActionSignals
from gateway.core.fsm import FSMState
from gateway.core.guidance_settings import E2When, EtraceSettings, Gates, InjectionSettings
from gateway.core.guidance_state import GuidanceState, Moment
from gateway.core.monitors import FAILURE_TYPES, MONITORS, Readings, combine
from gateway.core.pattern import Tier
from gateway.core.plan import Plan, plan
from gateway.core.step import Step
from gateway.steering.experiments import RandomArm, random_switch
from gateway.steering.reader import READER

WEIGHTS = {**dict.fromkeys(MONITORS, 0.1), "streak": 0.5, "hedge": 0.0, "stopped": 0.0}
HARD = {FSMState.SLOW, FSMState.SKIP}
LIVE_STATES = st.sampled_from([FSMState.FAST, FSMState.NORMAL, FSMState.SLOW, FSMState.SKIP])
SCORES = st.fixed_dictionaries({name: st.sampled_from([0.0, 0.3, 0.7, 1.0]) for name in MONITORS})
CHANCES = st.builds(
    RandomArm,
    experiment=st.text(max_size=5),
    unit=st.text(max_size=12),
    routing_share=st.floats(0, 1),
    guidance_share=st.floats(0, 1),
)


def reading(scores: Mapping[str, float]) -> Readings:
    return combine(scores, {}, weights=WEIGHTS, fire_threshold=0.6)


CALM = ActionSignal(state=FSMState.NORMAL, readings=reading(dict.fromkeys(MONITORS, 0.0)))


def an_arm(**changes: Any) -> RandomArm:
    """A control arm that acts on every step, unless `changes` say otherwise."""
    values: dict[str, Any] = {
        "experiment": "e",
        "unit": "u",
        "routing_share": 1.0,
        "guidance_share": 1.0,
    }
    return RandomArm(**(values | changes))


def planned(signal: ActionSignal, step: int, etraces: EtraceSettings) -> Plan:
    """The plan of a run that was in trouble on the two steps before."""
    moment = Moment(
        step=step,
        signal=ActionSignal(state=signal.state, readings=signal.readings, at_risk=signal.at_risk),
        reader=READER,
        recent=[Step(index=step, thought="Something was tried.")],
    )
    guidance = GuidanceState(e3_done=True, fired_step=step - 1)
    injection = InjectionSettings(monitor_composite=0.0)
    return plan(guidance, moment, etraces, injection, Gates(e1=0.0, e2=0.0))


@given(CHANCES, st.integers(1, 400), LIVE_STATES, SCORES, st.sampled_from(["always", "at_risk"]))
def test_the_draw_alone_says_when(
    chance: RandomArm, step: int, state: FSMState, scores: dict[str, float], e2_when: E2When
) -> None:
    """On drawn steps everything for a run at risk is planned, on the others nothing."""
    found = ActionSignal(state=state, readings=reading(scores))
    signals = chance.signals(step, found, WEIGHTS)
    assert signals == chance.signals(step, found, WEIGHTS)
    hard = FSMState.SKIP if state is FSMState.SKIP else FSMState.SLOW
    eased = FSMState.NORMAL if state in HARD else state
    routes, guides = [
        random_switch(chance.experiment, chance.unit, step, share)
        for share in (chance.routing_share, chance.guidance_share)
    ]
    assert signals.routing.state is (hard if routes else eased)
    assert signals.guidance.state is (hard if guides else eased)
    assert signals.reasons == (
        f"random: routing {'drawn' if routes else 'not drawn'}",
        f"random: guidance {'drawn' if guides else 'not drawn'}",
    )
    made = planned(signals.guidance, step, EtraceSettings(e2_when=e2_when))
    tiers = {query.tier for query in made.queries}
    assert tiers == ({Tier.E1, Tier.E2} if guides else set())
    assert (made.monitor is not None) is guides
    assert bool(made.directive) == (guides and state is FSMState.SKIP)


@given(CHANCES, st.integers(1, 400))
def test_the_rarer_action_implies_the_other(chance: RandomArm, step: int) -> None:
    """Texts come on steps that go to the strong model, as they mostly do for a run at risk."""
    signals = chance.signals(step, CALM, WEIGHTS)
    acts = (signals.routing.at_risk, signals.guidance.at_risk)
    assert acts != (
        (True, False) if chance.routing_share < chance.guidance_share else (False, True)
    )


@given(CHANCES, SCORES)
def test_a_failure_is_drawn_only_when_no_monitor_fired(
    chance: RandomArm, scores: dict[str, float]
) -> None:
    """The drawn failure is the same for the whole unit, and never one of weight 0."""
    found = ActionSignal(state=FSMState.NORMAL, readings=reading(scores))
    drawn = [chance.signals(step, found, WEIGHTS).guidance for step in range(1, 30)]
    seen = [signal.readings for signal in drawn if signal.at_risk and signal.readings]
    kinds = {readings.failure_type for readings in seen}
    assert all(readings.scores == scores for readings in seen)
    assert found.readings is not None
    if found.readings.fired:
        assert kinds <= {found.readings.failure_type}
    else:
        assert len(kinds) <= 1
        assert kinds <= set(FAILURE_TYPES.values()) - {"hedge", "stopped"}


def test_the_shares_of_the_steps_are_kept() -> None:
    """Over units and over the steps of one unit, for large and small shares."""
    for share in (0.0, 0.02, 0.15, 0.5, 1.0):
        drawn = [
            an_arm(unit=f"u{unit}", routing_share=share).signals(step, CALM, WEIGHTS)
            for unit in range(60)
            for step in range(1, 101)
        ]
        acting = sum(signals.routing.at_risk is True for signals in drawn) / len(drawn)
        assert acting == pytest.approx(share, abs=0.015)


def test_a_failure_is_drawn_by_its_weight() -> None:
    """Half of all units get the failure whose monitor has half of the weight."""
    kinds = []
    for unit in range(2000):
        readings = an_arm(unit=str(unit)).signals(1, CALM, WEIGHTS).guidance.readings
        assert readings is not None
        kinds.append(readings.failure_type)
    assert kinds.count("loop") / 2000 == pytest.approx(0.5 / 0.9, abs=0.03)
    assert kinds.count("budget") / 2000 == pytest.approx(0.1 / 0.9, abs=0.03)


@pytest.mark.parametrize(
    "found",
    [
        ActionSignal(state=FSMState.INIT),
        ActionSignal(state=FSMState.SLOW, readings=reading(dict.fromkeys(MONITORS, 1.0))),
    ],
    ids=["first run", "as carried over"],
)
def test_a_first_call_is_left_unchanged(found: ActionSignal) -> None:
    """Before the first scored step there is nothing to replace by a draw."""
    assert an_arm().signals(0, found, WEIGHTS) == ActionSignals(routing=found, guidance=found)


@pytest.mark.parametrize("scores", [None, {}])
def test_without_monitors_no_failure_is_named(scores: dict[str, float] | None) -> None:
    """Drawn steps are looked up without a failure type, and no monitor has a text to give."""
    readings = None if scores is None else reading(scores)
    found = ActionSignal(state=FSMState.FAST, readings=readings)
    signal = an_arm().signals(3, found, WEIGHTS).guidance
    assert signal == ActionSignal(state=FSMState.SLOW, readings=readings, at_risk=True)
    made = planned(signal, 3, EtraceSettings())
    assert (len(made.queries), made.failure_type, made.monitor) == (2, "", None)
