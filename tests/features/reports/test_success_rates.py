"""Success rates: intervals against published figures, and their properties."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.features.reports.experiment import chi_square_tail, sample_ratio
from gateway.features.reports.success_rates import Sample, design_effect, newcombe, rate_of
from gateway.reporting.statistics import wilson
from gateway.steering.experiments import MODES

counts = st.integers(0, 400).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n)))


def a_sample(successes: int, trials: int) -> Sample:
    """Each run of a unit of its own."""
    return Sample(outcomes=[(f"u{i}", i < successes) for i in range(trials)])


def test_wilson_gives_the_published_interval() -> None:
    """81 of 263 has the interval that Newcombe's comparison of methods lists for method 3."""
    low, high = wilson(81, 263)
    assert low == pytest.approx(0.2553, abs=1e-4)
    assert high == pytest.approx(0.3662, abs=1e-4)


def test_newcombe_gives_the_published_interval() -> None:
    """56 of 70 against 48 of 80 has the interval that Newcombe lists for method 10."""
    found = newcombe(a_sample(56, 70), a_sample(48, 80))
    assert found is not None
    assert found.estimate == pytest.approx(0.2)
    assert (found.low, found.high) == pytest.approx((0.0524, 0.3339), abs=1e-4)


@given(counts, counts)
def test_a_difference_lies_in_its_interval(first: tuple[int, int], second: tuple[int, int]) -> None:
    """Any two samples give an interval around the estimate, within -1 and 1, or nothing."""
    found = newcombe(a_sample(*first), a_sample(*second))
    if not (first[1] and second[1]):
        assert found is None
        return
    assert found is not None
    assert -1 - 1e-9 <= found.low <= found.estimate + 1e-9
    assert found.estimate - 1e-9 <= found.high <= 1 + 1e-9


@given(counts, counts)
def test_a_difference_turned_round_is_its_negative(
    first: tuple[int, int], second: tuple[int, int]
) -> None:
    """Neither arm is favoured by the method."""
    there = newcombe(a_sample(*first), a_sample(*second))
    back = newcombe(a_sample(*second), a_sample(*first))
    if there is not None and back is not None:
        assert there.estimate == pytest.approx(-back.estimate)
        assert (there.low, there.high) == pytest.approx((-back.high, -back.low))


def test_repeated_units_widen_the_interval() -> None:
    """A unit's ten equal runs say no more than one of them."""
    once = a_sample(30, 50)
    tenfold = Sample(outcomes=[outcome for outcome in once.outcomes for _ in range(10)])
    assert design_effect(tenfold) == pytest.approx(10, rel=0.05)
    alone, repeated = rate_of(once), rate_of(tenfold)
    assert alone is not None
    assert repeated is not None
    assert repeated.trials == 500
    assert repeated.low == pytest.approx(alone.low, abs=0.01)
    assert repeated.high == pytest.approx(alone.high, abs=0.01)


def test_units_that_all_came_to_the_same_count_once() -> None:
    """Where a variance between units cannot be seen, the careful reading is taken."""
    assert design_effect(Sample(outcomes=[("a", True), ("a", True), ("b", True)])) == 1.5
    assert design_effect(Sample(outcomes=[("a", True), ("a", False)])) == 2.0
    assert rate_of(Sample(outcomes=[])) is None


@pytest.mark.parametrize(
    ("statistic", "degrees", "tail"),
    [
        *[(3.841, 1, 0.05), (10.828, 1, 0.001), (0.0, 1, 1.0)],
        *[(5.991, 2, 0.05), (13.816, 2, 0.001)],
    ],
)
def test_chi_square_has_the_tables_tails(statistic: float, degrees: int, tail: float) -> None:
    """The usual table's critical values have their tails."""
    assert chi_square_tail(statistic, degrees) == pytest.approx(tail, abs=2e-4)


@pytest.mark.parametrize(
    ("observed", "shares", "suspicious"),
    [
        ({"on": 500, "off": 500}, {"on": 1, "off": 1}, False),
        ({"on": 530, "off": 470}, {"on": 1, "off": 1}, False),
        ({"on": 600, "off": 400}, {"on": 1, "off": 1}, True),
        ({"on": 600, "off": 400}, {"on": 3, "off": 2}, False),
        ({"on": 340, "shadow": 330, "off": 330}, {"on": 1, "shadow": 1, "off": 1}, False),
        (dict.fromkeys(MODES, 250), dict.fromkeys(MODES, 1), False),
        ({**dict.fromkeys(MODES, 250), "off": 170}, dict.fromkeys(MODES, 1), True),
        ({"on": 500, "off": 400, "shadow": 1}, {"on": 1, "off": 1}, True),
        ({"on": 200}, {"on": 1, "off": 1}, True),
    ],
)
def test_a_split_that_chance_would_not_make_is_flagged(
    observed: dict[str, int], shares: dict[str, float], suspicious: bool
) -> None:
    """Units in an arm without a share, or far from their shares, are suspicious."""
    found = sample_ratio(observed, shares)
    assert found is not None
    assert found.suspicious is suspicious
    assert math.isclose(sum(found.expected.values()), 1.0)


def test_one_arm_or_no_unit_cannot_be_checked() -> None:
    """There is no ratio to check."""
    assert sample_ratio({}, {"on": 1, "off": 1}) is None
    assert sample_ratio({"on": 5}, {"on": 1}) is None
