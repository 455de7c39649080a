"""The control arm: chance says when, and nothing else about an intervention changes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.steering.acting import Standing, random_switch
from gateway.steering.chance import Chance, Stance
from gateway.steering.etrace.gate import Moment, Plan, plan
from gateway.steering.etrace.pattern import Tier
from gateway.steering.etrace.settings import E2When, EtraceSettings, Gates, InjectionSettings
from gateway.steering.etrace.state import GuidanceState
from gateway.steering.fsm import FSMState
from gateway.steering.monitors.base import FAILURE_TYPES, MONITORS, Readings, combine
from gateway.steering.steps import Step

WEIGHTS = {**dict.fromkeys(MONITORS, 0.1), "streak": 0.5, "hedge": 0.0}
HARD = {FSMState.SLOW, FSMState.SKIP}
LIVE_STATES = st.sampled_from([FSMState.FAST, FSMState.NORMAL, FSMState.SLOW, FSMState.SKIP])
SCORES = st.fixed_dictionaries({name: st.sampled_from([0.0, 0.3, 0.7, 1.0]) for name in MONITORS})
CHANCES = st.builds(
    Chance,
    experiment=st.text(max_size=5),
    unit=st.text(max_size=12),
    routing_share=st.floats(0, 1),
    guidance_share=st.floats(0, 1),
)


def reading(scores: Mapping[str, float]) -> Readings:
    return combine(scores, {}, weights=WEIGHTS, fire_threshold=0.6)


CALM = Standing(state=FSMState.NORMAL, readings=reading(dict.fromkeys(MONITORS, 0.0)))


def a_chance(**changes: Any) -> Chance:
    """One that acts on every step, if not told otherwise."""
    values = {"experiment": "e", "unit": "u", "routing_share": 1.0, "guidance_share": 1.0}
    return Chance(**(values | changes))


def planned(standing: Standing, step: int, etraces: EtraceSettings) -> Plan:
    """The plan of a run that was in trouble on the two steps before."""
    moment = Moment(
        step=step,
        state=standing.state,
        readings=standing.readings,
        recent=[Step(index=step, thought="Something was tried.")],
        at_risk=standing.at_risk,
    )
    guidance = GuidanceState(e3_done=True, fired_steps=(step - 2, step - 1))
    injection = InjectionSettings(monitor_composite=0.0)
    return plan(guidance, moment, etraces, injection, Gates(e1=0.0, e2=0.0))


@given(CHANCES, st.integers(1, 400), LIVE_STATES, SCORES, st.sampled_from(["always", "at_risk"]))
def test_the_draw_alone_says_when(
    chance: Chance, step: int, state: FSMState, scores: dict[str, float], e2_when: E2When
) -> None:
    """On drawn steps everything that risk calls for is planned, on the others none of it."""
    found = Standing(state=state, readings=reading(scores))
    stance = chance.stance(step, found, WEIGHTS)
    assert stance == chance.stance(step, found, WEIGHTS)
    hard = FSMState.SKIP if state is FSMState.SKIP else FSMState.SLOW
    eased = FSMState.NORMAL if state in HARD else state
    routes, guides = [
        random_switch(chance.experiment, chance.unit, step, share)
        for share in (chance.routing_share, chance.guidance_share)
    ]
    assert stance.routing.state is (hard if routes else eased)
    assert stance.guidance.state is (hard if guides else eased)
    assert stance.reasons == (
        f"random: routing {'drawn' if routes else 'not drawn'}",
        f"random: guidance {'drawn' if guides else 'not drawn'}",
    )
    told = planned(stance.guidance, step, EtraceSettings(e2_when=e2_when))
    tiers = {query.tier for query in told.queries}
    assert tiers == ({Tier.E1, Tier.E2} if guides else set())
    assert (told.monitor is not None) == told.e1_open == guides
    assert told.directive == (guides and state is FSMState.SKIP)


@given(CHANCES, st.integers(1, 400))
def test_the_rarer_one_acts_where_the_other_does(chance: Chance, step: int) -> None:
    """Texts come on steps that the strong model answers, as they mostly do for a run in trouble."""
    stance = chance.stance(step, CALM, WEIGHTS)
    acts = (stance.routing.at_risk, stance.guidance.at_risk)
    assert acts != (
        (True, False) if chance.routing_share < chance.guidance_share else (False, True)
    )


@given(CHANCES, SCORES)
def test_what_a_monitor_reports_is_what_is_spoken_about(
    chance: Chance, scores: dict[str, float]
) -> None:
    """Chance invents trouble only where none is: of one kind for a unit, and never of weight 0."""
    found = Standing(state=FSMState.NORMAL, readings=reading(scores))
    drawn = [chance.stance(step, found, WEIGHTS).guidance for step in range(1, 30)]
    seen = [standing.readings for standing in drawn if standing.at_risk and standing.readings]
    kinds = {readings.failure_type for readings in seen}
    assert all(readings.scores == scores for readings in seen)
    assert found.readings is not None
    if found.readings.fired:
        assert kinds <= {found.readings.failure_type}
    else:
        assert len(kinds) <= 1
        assert kinds <= set(FAILURE_TYPES.values()) - {"hedge"}


def test_the_shares_of_the_steps_are_kept() -> None:
    """Over units and over the steps of one, for common and for rare drawing."""
    for share in (0.0, 0.02, 0.15, 0.5, 1.0):
        drawn = [
            a_chance(unit=f"u{unit}", routing_share=share).stance(step, CALM, WEIGHTS)
            for unit in range(60)
            for step in range(1, 101)
        ]
        acting = sum(stance.routing.at_risk is True for stance in drawn) / len(drawn)
        assert acting == pytest.approx(share, abs=0.015)


def test_a_kind_of_trouble_is_drawn_by_its_weight() -> None:
    """Half of all units have the trouble whose monitor has half of the weight."""
    kinds = []
    for unit in range(2000):
        readings = a_chance(unit=str(unit)).stance(1, CALM, WEIGHTS).guidance.readings
        assert readings is not None
        kinds.append(readings.failure_type)
    assert kinds.count("loop") / 2000 == pytest.approx(0.5 / 0.9, abs=0.03)
    assert kinds.count("budget") / 2000 == pytest.approx(0.1 / 0.9, abs=0.03)


@pytest.mark.parametrize(
    "found",
    [
        Standing(state=FSMState.INIT),
        Standing(state=FSMState.SLOW, readings=reading(dict.fromkeys(MONITORS, 1.0))),
    ],
    ids=["first run", "as carried over"],
)
def test_a_first_call_is_left_as_it_is(found: Standing) -> None:
    """Nothing is scored yet that chance could be wrong or right about."""
    assert a_chance().stance(0, found, WEIGHTS) == Stance(routing=found, guidance=found)


@pytest.mark.parametrize("scores", [None, {}])
def test_without_monitors_there_is_no_trouble_to_name(scores: dict[str, float] | None) -> None:
    """Drawn steps are looked up without a failure type, and no monitor has a text to give."""
    readings = None if scores is None else reading(scores)
    found = Standing(state=FSMState.FAST, readings=readings)
    standing = a_chance().stance(3, found, WEIGHTS).guidance
    assert standing == Standing(state=FSMState.SLOW, readings=readings, at_risk=True)
    told = planned(standing, 3, EtraceSettings())
    assert (len(told.queries), told.failure_type, told.monitor) == (2, "", None)
