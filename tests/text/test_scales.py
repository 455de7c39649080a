"""The arithmetic that charts of a page and of a terminal share."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.text.plots import bar, column, interval, strip
from gateway.text.svg import HOTTEST, fraction, heat, stretches, thinned


@pytest.mark.parametrize(
    ("value", "place"), [(-5, 0.0), (1, 0.0), (2, 0.25), (5, 1.0), (99, 1.0), (float("inf"), 1.0)]
)
def test_a_value_outside_its_scale_is_at_the_end(value: float, place: float) -> None:
    """Positions never leave the chart."""
    assert fraction(value, 1, 5) == place


def test_a_scale_without_length_has_one_position() -> None:
    """No division by zero."""
    assert fraction(3, 3, 3) == 0.0


@given(st.lists(st.none() | st.floats(0, 1), max_size=200), st.integers(1, 50))
def test_thinned_values_keep_their_peak(values: list[float | None], width: int) -> None:
    """At most `width` values, and the highest is among them."""
    shown = thinned(values, width)
    assert len(shown) == min(width, len(values))
    known = [value for value in values if value is not None]
    assert max((v for v in shown if v is not None), default=None) == max(known, default=None)


@given(st.floats(0, 1), st.floats(0, 1))
def test_heat_reaches_its_top_only_where_the_monitor_fires(value: float, fire: float) -> None:
    """Whatever the threshold, 0 included."""
    level = heat(value, fire)
    assert level is not None
    assert 0 <= level <= HOTTEST
    assert (level == HOTTEST) is (value >= fire)


def test_missing_values_end_a_stretch() -> None:
    """A gap separates two stretches of the same value."""
    assert list(stretches(["a", "a", None, "a"])) == [(0, 2, "a"), (3, 1, "a")]


def test_a_terminal_shows_the_same_levels() -> None:
    """Columns fill with the value, strips darken, bars keep a trace of the smallest count."""
    assert [column(value) for value in (0, 0.5, 1, 7)] == [" ", "▄", "█", "█"]
    assert strip([None, 0.0, 0.3, 0.59, 0.6], 0.6, width=80).plain == " ·▒██"
    assert bar(1, 1000, width=4, colour="red").plain == "█   "
    assert bar(1000, 1000, width=4, colour="red").plain == "████"


def test_an_interval_marks_where_there_is_no_effect() -> None:
    """Inside the interval the mark is crossed; an interval past the scale ends at its ends."""
    assert interval(-1, 0.5, 1, bounds=(-1, 1), none=0).plain[20] == "┼"
    beyond = interval(-9, -8, -7, bounds=(-1, 1), none=0).plain
    assert beyond[0] == "●"
    assert beyond[20] == "┊"
