"""The arithmetic of charts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.text.svg import HOTTEST, fraction, heat, stretches


@pytest.mark.parametrize(
    ("value", "place"), [(-5, 0.0), (1, 0.0), (2, 0.25), (5, 1.0), (99, 1.0), (float("inf"), 1.0)]
)
def test_a_value_outside_its_scale_is_at_the_end(value: float, place: float) -> None:
    """Positions never leave the chart."""
    assert fraction(value, 1, 5) == place


def test_a_scale_without_length_has_one_position() -> None:
    """No division by zero."""
    assert fraction(3, 3, 3) == 0.0


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
