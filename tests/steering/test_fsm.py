"""The difficulty state machine."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.fsm import FSMSettings, FSMState, next_state

INIT, FAST, NORMAL = FSMState.INIT, FSMState.FAST, FSMState.NORMAL
SLOW, SKIP, END = FSMState.SLOW, FSMState.SKIP, FSMState.END
DEFAULT = FSMSettings()


def states(scores: list[float], settings: FSMSettings = DEFAULT) -> list[FSMState]:
    """The state after each score of a run."""
    state, found = INIT, []
    for count in range(1, len(scores) + 1):
        state = next_state(state, scores[:count], settings)
        found.append(state)
    return found


def test_each_states_value_is_its_name() -> None:
    """`FSMState.FAST.value    # "FAST"`, and the same for the other five."""
    assert [state.value for state in FSMState] == ["INIT", "FAST", "NORMAL", "SLOW", "SKIP", "END"]
    assert all(state.value == state.name for state in FSMState)


def test_the_defaults_are_those_of_the_states_page() -> None:
    """The parameter table: 0.2, 0.6, 0.85, 0.1, windows 6, 5, 35; SKIP holds by default."""
    assert dataclasses.asdict(DEFAULT) == {
        "fast_threshold": 0.2,
        "slow_threshold": 0.6,
        "skip_threshold": 0.85,
        "hysteresis_margin": 0.1,
        "fast_window": 6,
        "slow_window": 5,
        "skip_window": 35,
        "skip_exit": "hold",
    }
    assert DEFAULT.longest_window == 35


@pytest.mark.parametrize("score", [0.0, 0.5, 1.0])
def test_init_becomes_normal_on_the_first_scored_step(score: float) -> None:
    """From INIT the very next scored step transitions to NORMAL, whatever the score."""
    assert next_state(INIT, [score], DEFAULT) is NORMAL


def test_a_nan_score_leaves_every_state_unchanged() -> None:
    """Reference 3, check 1: a NaN score returns the current state, INIT included."""
    for state in FSMState:
        assert next_state(state, [0.1] * 40 + [math.nan], DEFAULT) is state


def test_without_a_score_the_state_stays() -> None:
    """An empty history changes nothing."""
    for state in FSMState:
        assert next_state(state, [], DEFAULT) is state


def test_normal_becomes_fast_at_the_sixth_easy_step() -> None:
    """Enter FAST if the last 6 steps all scored strictly below 0.2; earliest at the 6th (C33)."""
    assert states([0.1] * 6) == [NORMAL] * 5 + [FAST]


def test_normal_becomes_slow_at_the_fifth_hard_step() -> None:
    """Enter SLOW if the last 5 steps all scored strictly above 0.6; earliest at the 5th (C33)."""
    assert states([0.7] * 5) == [NORMAL] * 4 + [SLOW]


def test_slow_becomes_skip_at_the_thirty_fifth_very_hard_step() -> None:
    """35 scores above 0.85 are needed; those from before SLOW count."""
    assert states([0.9] * 35) == [NORMAL] * 4 + [SLOW] * 30 + [SKIP]


@pytest.mark.parametrize(
    ("state", "history"),
    [
        (NORMAL, [0.1] * 5 + [0.2]),
        (NORMAL, [0.7] * 4 + [0.6]),
        (SLOW, [0.9] * 34 + [0.85]),
        (FAST, [0.3]),
        (FAST, [0.2 + 0.1]),
        (SLOW, [0.5]),
    ],
)
def test_scores_equal_to_a_threshold_change_nothing(state: FSMState, history: list[float]) -> None:
    """C4: every comparison is strict; 0.3 and 0.2 + 0.1 stay FAST, 0.5 stays SLOW."""
    assert next_state(state, history, DEFAULT) is state


def test_fast_returns_to_normal_above_the_margin_only() -> None:
    """From FAST: back to NORMAL if the score exceeds 0.2 + 0.1, history not consulted."""
    assert next_state(FAST, [0.29], DEFAULT) is FAST
    assert next_state(FAST, [0.31], DEFAULT) is NORMAL
    assert next_state(FAST, [0.9] * 10, DEFAULT) is NORMAL


def test_fast_never_goes_straight_to_slow() -> None:
    """However hard the window, FAST first returns to NORMAL."""
    assert states([0.1] * 6 + [0.9] * 5)[6:] == [NORMAL] * 4 + [SLOW]


def test_one_score_below_the_exit_line_leaves_slow() -> None:
    """C5: one score below 0.6 - 0.1 exits; one between 0.5 and 0.6 does not."""
    assert next_state(SLOW, [0.7] * 5 + [0.55], DEFAULT) is SLOW
    assert next_state(SLOW, [0.7] * 5 + [0.49], DEFAULT) is NORMAL


def test_the_exit_score_breaks_the_window() -> None:
    """The history is never cleared, yet re-entry needs a full new window."""
    assert states([0.7] * 5 + [0.4] + [0.7] * 5)[5:] == [NORMAL] * 5 + [SLOW]


@pytest.mark.parametrize(
    ("skip_exit", "score", "after"),
    [
        ("hold", 0.86, SKIP),
        ("hold", 0.7, SKIP),
        ("hold", 0.5, SKIP),
        ("hold", 0.49, NORMAL),
        ("demote", 0.86, SKIP),
        ("demote", 0.7, SLOW),
        ("demote", 0.49, NORMAL),
        ("absorb", 0.7, SKIP),
        ("absorb", 0.0, SKIP),
    ],
)
def test_leaving_skip(skip_exit: Any, score: float, after: FSMState) -> None:
    """C1: hold stays until below 0.5, demote falls to SLOW without a full window, absorb stays."""
    settings = FSMSettings(skip_exit=skip_exit)
    assert next_state(SKIP, [0.9] * 35 + [score], settings) is after


def test_end_is_absorbing() -> None:
    """END: once reached, no further transition (C3)."""
    assert next_state(END, [0.9], DEFAULT) is END


@given(
    state=st.sampled_from(FSMState),
    history=st.lists(st.floats(0, 1), max_size=40),
    skip_exit=st.sampled_from(["hold", "demote", "absorb"]),
)
def test_scores_never_lead_to_end_or_back_to_init(
    state: FSMState, history: list[float], skip_exit: Any
) -> None:
    """END is set when a run ends, never by scores; INIT is only left, never entered."""
    after = next_state(state, history, FSMSettings(skip_exit=skip_exit))
    assert after is not END or state is END
    assert after is not INIT or state is INIT


@given(history=st.lists(st.floats(0, 1), min_size=36, max_size=60), state=st.sampled_from(FSMState))
def test_only_the_longest_window_of_the_history_matters(
    history: list[float], state: FSMState
) -> None:
    """Scores before the last 35 cannot change a transition."""
    tail = history[-DEFAULT.longest_window :]
    assert next_state(state, history, DEFAULT) is next_state(state, tail, DEFAULT)


def test_fast_is_tested_before_slow() -> None:
    """Rules are tried in order: a window of one easy score is never tested as hard."""
    settings = FSMSettings(fast_window=1, slow_window=1)
    assert next_state(NORMAL, [0.1], settings) is FAST
    assert next_state(NORMAL, [0.7], settings) is SLOW


def test_a_subset_of_the_parameters_can_be_set() -> None:
    """The configuration sample of the states page: the window shrinks to 4, the rest stays."""
    settings = FSMSettings(slow_threshold=0.65, slow_window=4)
    assert states([0.66] * 4, settings)[-1] is SLOW
    assert settings.fast_window == 6


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"fast_window": 0}, "fast_window: expected a whole number of at least 1, got 0"),
        ({"fast_threshold": -0.1}, r"fast_threshold: expected a number in \[0, 1\], got -0.1"),
        ({"skip_threshold": 1.1}, r"skip_threshold: expected a number in \[0, 1\], got 1.1"),
        ({"slow_threshold": math.nan}, r"slow_threshold: expected a number in \[0, 1\], got nan"),
        ({"fast_threshold": 0.6}, "fast_threshold: 0.6 is not below slow_threshold 0.6"),
        ({"slow_threshold": 0.9}, "slow_threshold: 0.9 is above skip_threshold 0.85"),
    ],
)
def test_bad_settings_are_refused_by_field(values: dict[str, Any], message: str) -> None:
    """A window below 1, a threshold outside [0, 1], fast >= slow, slow > skip never load."""
    with pytest.raises(ValueError, match=message):
        FSMSettings(**values)


def test_slow_may_equal_skip() -> None:
    """Only slow above skip is refused."""
    assert FSMSettings(slow_threshold=0.85).skip_threshold == 0.85


@pytest.mark.parametrize("at", range(5))
def test_nan_breaks_the_window_at_any_position(at: int) -> None:
    """A window with an unknown score is not a window of hard scores."""
    history = [0.9] * 5 + [0.9]
    history[at] = math.nan
    assert next_state(FSMState.NORMAL, history, FSMSettings()) is (
        FSMState.SLOW if at == 0 else FSMState.NORMAL
    )
