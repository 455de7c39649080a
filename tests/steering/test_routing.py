"""Routing: the model of a state, among those that can serve the request, kept for some steps."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.fsm import FSMState
from gateway.core.routing import (
    ROUTED_STATES,
    ModelPin,
    RoutedModel,
    Routes,
    RoutingSettings,
    Serves,
    choose,
)

REQUESTED = "usual"
# The first documented example: FAST to a Haiku-class model, SLOW and SKIP to a Sonnet-class one.
DOCUMENTED = {
    "FAST": "anthropic:claude-haiku-4-5-20251001",
    "SLOW": "anthropic:claude-sonnet-4-6",
    "SKIP": "anthropic:claude-sonnet-4-6",
}


def route(
    state: FSMState,
    models: Mapping[str, str],
    *,
    step: int = 1,
    dwell: int = 0,
    pinned: ModelPin | None = None,
    serves: Serves | None = None,
) -> RoutedModel:
    return choose(
        state,
        REQUESTED,
        step,
        routes=Routes(by_state=models),
        settings=RoutingSettings(min_dwell_steps=dwell),
        pinned=pinned,
        serves=serves,
    )


@pytest.mark.parametrize(
    ("state", "model"),
    [
        (FSMState.INIT, REQUESTED),
        (FSMState.FAST, "anthropic:claude-haiku-4-5-20251001"),
        (FSMState.NORMAL, REQUESTED),
        (FSMState.SLOW, "anthropic:claude-sonnet-4-6"),
        (FSMState.SKIP, "anthropic:claude-sonnet-4-6"),
        (FSMState.END, REQUESTED),
    ],
)
def test_the_documented_example(state: FSMState, model: str) -> None:
    """`states without a mapping use whatever model the agent was created with` (S3)."""
    assert route(state, DOCUMENTED).model == model


@given(st.dictionaries(st.sampled_from(ROUTED_STATES), st.sampled_from("abc")))
def test_any_subset_may_be_mapped(models: dict[str, str]) -> None:
    """`Map any subset of "FAST", "NORMAL", "SLOW", "SKIP"` (S3; C22, against S1's fixed NORMAL)."""
    for name in ("FAST", "NORMAL", "SLOW"):
        assert route(FSMState[name], models).model == models.get(name, REQUESTED)


def test_skip_shares_the_routing_of_slow() -> None:
    """`SKIP shares SLOW's routing and cooldown` (S3; C22), unless it has a model of its own."""
    assert route(FSMState.SKIP, {"SLOW": "strong"}).model == "strong"
    assert route(FSMState.SKIP, {"SLOW": "strong", "SKIP": "strongest"}).model == "strongest"
    assert route(FSMState.SLOW, {"SKIP": "strongest"}).model == REQUESTED


@pytest.mark.parametrize("name", ["INIT", "END", "slow", "SLEEPY", ""])
def test_an_unknown_state_is_refused(name: str) -> None:
    """A key that is not a routed state is refused, and the message names it."""
    with pytest.raises(ValueError, match=rf"model_routing\.{name}: not one of FAST, NORMAL"):
        Routes(by_state={name: "m"})
    with pytest.raises(ValueError, match=rf"model_routing_by_model\.gpt\.{name}"):
        Routes(by_model={"gpt": {name: "m"}})


def test_an_empty_model_name_is_refused() -> None:
    """A state mapped to nothing is a mistake, not a way to leave it out."""
    with pytest.raises(ValueError, match=r"model_routing\.SLOW: may not be empty"):
        Routes(by_state={"SLOW": ""})


def test_the_map_of_a_requested_name_wins_as_a_whole() -> None:
    """A requested name with its own routes uses none of the common ones."""
    routes = Routes(
        by_state={"FAST": "small", "SLOW": "strong"}, by_model={REQUESTED: {"SLOW": "own"}}
    )
    settings = RoutingSettings()
    models = [
        choose(state, name, 1, routes=routes, settings=settings).model
        for name in (REQUESTED, "other")
        for state in (FSMState.FAST, FSMState.SLOW, FSMState.SKIP)
    ]
    assert models == [REQUESTED, "own", "own", "small", "strong", "strong"]


def test_a_model_that_cannot_serve_is_replaced_by_the_next() -> None:
    """SKIP's model, then SLOW's, then the requested one; each refusal has its reason."""
    models = {"SLOW": "strong", "SKIP": "strongest"}
    refusals = {"strongest": "no tools"}
    found = route(FSMState.SKIP, models, serves=refusals.get)
    assert found.model == "strong"
    assert found.reasons == ("routing: strongest not used: no tools",)
    refusals["strong"] = "context of 8192 tokens"
    found = route(FSMState.SKIP, models, serves=refusals.get)
    assert found.model == REQUESTED
    assert found.reasons[1:] == ("routing: strong not used: context of 8192 tokens",)


def test_the_requested_model_is_never_refused() -> None:
    """The requested model is used without a check of its capabilities."""

    def serves(model: str) -> str | None:
        raise AssertionError(f"{model} was asked about")

    assert route(FSMState.SLOW, {"SLOW": REQUESTED}, serves=serves).model == REQUESTED
    assert route(FSMState.NORMAL, {"SLOW": "strong"}, serves=serves).model == REQUESTED


def test_a_negative_dwell_is_refused() -> None:
    """The number of steps a model is kept is 0 or more."""
    with pytest.raises(ValueError, match="min_dwell_steps: must be 0 or more"):
        RoutingSettings(min_dwell_steps=-1)


def run_through(states: list[FSMState], models: Mapping[str, str], dwell: int) -> list[str]:
    """The model of each step of a run that goes through `states`."""
    pinned, asked = None, []
    for step, state in enumerate(states):
        found = route(state, models, step=step, dwell=dwell, pinned=pinned)
        pinned = found.pin
        asked.append(found.model)
    return asked


def test_a_stronger_model_is_kept_before_a_cheaper_one_returns() -> None:
    """Leaving SLOW at once would lose the provider's cache a second time."""
    models = {"FAST": "small", "SLOW": "strong"}
    states = [FSMState.SLOW, *[FSMState.NORMAL] * 4]
    assert run_through(states, models, 3) == ["strong"] * 3 + [REQUESTED] * 2
    assert run_through(states, models, 0) == ["strong"] + [REQUESTED] * 4


def test_a_pinned_model_has_its_reason() -> None:
    """The reason says for how many more steps the model is kept."""
    pinned = ModelPin(model="strong", state=FSMState.SLOW, since_step=4)
    found = route(FSMState.NORMAL, {"SLOW": "strong"}, step=5, dwell=3, pinned=pinned)
    assert (found.model, found.pin) == ("strong", pinned)
    assert found.reasons == ("routing: strong held for 2 more steps",)


def test_a_pinned_model_that_cannot_serve_is_left() -> None:
    """The pin saves cost and never makes a request fail."""
    pinned = ModelPin(model="strong", state=FSMState.SLOW, since_step=4)
    serves = {"strong": "no vision"}.get
    found = route(
        FSMState.NORMAL, {"SLOW": "strong"}, step=5, dwell=9, pinned=pinned, serves=serves
    )
    assert found.model == REQUESTED


STATES = st.lists(st.sampled_from(list(FSMState)[:-1]), max_size=30)
RANK = {"INIT": 1, "FAST": 0, "NORMAL": 1, "SLOW": 2, "SKIP": 3}


@given(STATES, st.integers(0, 6))
def test_an_escalation_is_never_delayed(states: list[FSMState], dwell: int) -> None:
    """Whatever model is pinned, a harder state gets its own model at once."""
    models = {"FAST": "small", "SLOW": "strong", "SKIP": "strongest"}
    asked = run_through(states, models, dwell)
    for number in range(1, len(states)):
        before, state = states[number - 1], states[number]
        if RANK[state.value] > max(RANK[s.value] for s in states[:number]):
            assert asked[number] == models.get(state.value, REQUESTED), (before, state)


@given(STATES, st.integers(1, 6))
def test_a_cheaper_model_waits_for_the_dwell(states: list[FSMState], dwell: int) -> None:
    """After a switch to a stronger model, none of an easier state is used for `dwell` steps."""
    models = {"FAST": "small", "NORMAL": "usual", "SLOW": "strong", "SKIP": "strongest"}
    cost = {"small": 0, "usual": 1, "strong": 2, "strongest": 3}
    asked = run_through(states, models, dwell)
    since = 0
    for number in range(1, len(asked)):
        if cost[asked[number]] < cost[asked[number - 1]]:
            assert number - since >= dwell
        if asked[number] != asked[number - 1]:
            since = number


@given(STATES)
def test_without_a_dwell_the_state_alone_decides(states: list[FSMState]) -> None:
    """`min_dwell_steps: 0`, the default, makes routing a function of the state."""
    models = {"FAST": "small", "SLOW": "strong"}
    alone = [route(state, models).model for state in states]
    assert run_through(states, models, RoutingSettings().min_dwell_steps) == alone
