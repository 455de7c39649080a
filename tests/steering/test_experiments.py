"""Experiment arms: always the same draw everywhere, in the configured proportions."""

from __future__ import annotations

import hashlib
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.steering.experiments import MODES, ExperimentSettings, assign
from gateway.steering.identity.ids import draw

UNITS = st.text(max_size=40)


def test_draws_are_pinned() -> None:
    """A change of these numbers would move units of running experiments between arms."""
    pinned = {
        ("exp-1", "task-1"): b"5:exp-16:task-1",
        ("exp-1", "task-2"): b"5:exp-16:task-2",
        ("", ""): b"0:0:",
        ("müde", "ü"): "5:müde2:ü".encode(),
    }
    for (experiment, unit), joined in pinned.items():
        first = hashlib.sha256(joined).digest()[:8]
        assert draw(experiment, unit) == int.from_bytes(first, "big") / 2**64


def test_parts_that_join_to_the_same_text_have_different_draws() -> None:
    """("a:b", "c") and ("a", "b:c") are one draw in the reference; here each part has a length."""
    assert draw("a:b", "c") != draw("a", "b:c")
    assert draw("ab", "c") != draw("a", "bc")


@given(UNITS, UNITS)
def test_a_draw_lies_in_the_unit_interval(experiment: str, unit: str) -> None:
    """Every pair of texts, unpaired surrogates too, has a draw in [0, 1), always the same."""
    assert 0.0 <= draw(experiment, unit) < 1.0
    assert draw(experiment, unit) == draw(experiment, unit)
    assert 0.0 <= draw(experiment, "\ud800") < 1.0


@given(st.sampled_from(MODES), UNITS)
def test_the_whole_share_takes_every_unit(arm: str, unit: str) -> None:
    """An arm with the whole share gets all units, one without a share none."""
    shares = dict.fromkeys(MODES, 0.0) | {arm: 3.0}
    assert assign(ExperimentSettings(id="e", arms=shares), unit) == arm


def test_arms_get_their_shares() -> None:
    """Over 6,000 units each arm is within 3 points of its share, which need not sum to 1."""
    settings = ExperimentSettings(id="e", arms={"on": 5, "shadow": 3, "off": 2})
    arms = Counter(assign(settings, f"task-{number}") for number in range(6000))
    for arm, share in (("on", 0.5), ("shadow", 0.3), ("off", 0.2)):
        assert arms[arm] / 6000 == pytest.approx(share, abs=0.03)


def test_the_order_of_arms_in_the_config_does_not_matter() -> None:
    """The same shares written in another order give every unit the same arm."""
    one = ExperimentSettings(id="e", arms={"off": 0.5, "on": 0.5})
    other = ExperimentSettings(id="e", arms={"on": 0.5, "off": 0.5})
    units = [str(number) for number in range(200)]
    assert [assign(one, u) for u in units] == [assign(other, u) for u in units]


def test_an_arm_without_a_share_moves_no_unit() -> None:
    """A new arm with share 0 leaves every unit in the arm it had."""
    settings = ExperimentSettings(id="e", arms={"on": 5, "shadow": 0, "off": 5})
    for number in range(500):
        wanted = "on" if draw("e", f"task-{number}") < 0.5 else "off"
        assert assign(settings, f"task-{number}") == wanted


def settings_of(changes: dict[str, Any]) -> ExperimentSettings:
    return ExperimentSettings(**changes)


def test_half_and_half_is_the_default() -> None:
    """Without configured shares an experiment compares on with off."""
    assert ExperimentSettings().arms == {"on": 0.5, "off": 0.5}


@pytest.mark.parametrize(
    ("arms", "message"),
    [
        ({"maybe": 1.0}, r"arms\.maybe: not one of on, shadow, off"),
        ({"on": -0.1, "off": 1.0}, r"arms\.on: must be 0 or more, and finite, got -0\.1"),
        ({"on": 0.0}, "arms: the shares must add up to more than 0"),
        ({}, "arms: the shares must add up to more than 0"),
    ],
)
def test_bad_shares_are_refused(arms: dict[str, float], message: str) -> None:
    """The message names the arm and what is wrong with it."""
    with pytest.raises(ValueError, match=message):
        ExperimentSettings(id="e", arms=arms)
