"""What runs spend: typical values and the ratio of two arms."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.features.reports.winsorised_means import Spent, amount_of, amount_ratio

amounts = st.lists(st.floats(0.01, 1e6), min_size=1, max_size=60)


def each_alone(values: list[float]) -> Spent:
    """Each run of a unit of its own."""
    return [(f"u{i}", value) for i, value in enumerate(values)]


def some_costs(seed: int, count: int, factor: float = 1.0) -> list[float]:
    """Skewed, as costs are."""
    chance = random.Random(seed)
    return [factor * math.exp(chance.gauss(0, 0.8)) for _ in range(count)]


def test_a_runaway_run_hardly_moves_the_mean() -> None:
    """One run that cost a thousand times the others counts as the dearest of the others."""
    usual = amount_of(each_alone([1.0] * 50 + [2.0] * 49))
    runaway = amount_of(each_alone([1.0] * 50 + [2.0] * 49 + [2000.0]))
    assert usual is not None
    assert runaway is not None
    assert runaway.mean == pytest.approx(usual.mean, abs=0.02)


@given(amounts)
def test_typical_values_lie_among_the_values(values: list[float]) -> None:
    """Mean and median are between the least and the most."""
    found = amount_of(each_alone(values))
    assert found is not None
    low, high = min(values) * (1 - 1e-9), max(values) * (1 + 1e-9)
    assert low <= found.mean <= high
    assert low <= found.median <= high
    assert found.runs == len(values)


@pytest.mark.parametrize(
    ("values", "median"), [([1.0], 1.0), ([1.0, 3.0], 2.0), ([5.0, 1.0, 3.0], 3.0)]
)
def test_the_median_is_the_middle(values: list[float], median: float) -> None:
    """With an even number of runs it is half way between the two in the middle."""
    found = amount_of(each_alone(values))
    assert found is not None
    assert found.median == median


def test_the_mean_is_winsorised() -> None:
    """A twentieth of the runs at either end counts as the nearest run inside."""
    values = some_costs(6, 100)
    found = amount_of(each_alone(values))
    assert found is not None
    low, high = (sorted(values)[rank - 1] for rank in (5, 95))
    cut = [min(max(value, low), high) for value in values]
    assert found.mean == pytest.approx(math.fsum(cut) / 100)


def test_nothing_known_gives_nothing() -> None:
    """Without a known amount there is no figure, and no ratio."""
    nobody: Spent = []
    assert amount_of(nobody) is None
    assert amount_ratio(nobody, each_alone([1.0])) is None


def test_a_saving_shows_as_its_share() -> None:
    """A tenth off every run is a ratio of 0.9, of means and of medians."""
    costs = some_costs(1, 300)
    found = amount_ratio(each_alone([0.9 * c for c in costs]), each_alone(costs))
    assert found is not None
    for ratio in (found.mean, found.median):
        assert ratio is not None
        assert ratio.estimate == pytest.approx(0.9)
        assert ratio.low < 0.9 < ratio.high


def test_the_same_runs_give_the_same_report() -> None:
    """Nothing is drawn, and the order of the runs does not matter."""
    treated, baseline = each_alone(some_costs(1, 80)), each_alone(some_costs(2, 90))
    once = amount_ratio(treated, baseline)
    assert once == amount_ratio(treated[::-1], baseline[::-1])


def test_repeated_units_widen_the_interval() -> None:
    """Ten equal runs of each unit make the interval no narrower than one of each."""
    costs, others = some_costs(3, 40), some_costs(4, 40)

    def tenfold(values: list[float]) -> Spent:
        return [(f"u{i}", v) for i, v in enumerate(values) for _ in range(10)]

    once = amount_ratio(each_alone(costs), each_alone(others))
    repeated = amount_ratio(tenfold(costs), tenfold(others))
    assert once is not None
    assert repeated is not None
    assert once.mean is not None
    assert repeated.mean is not None
    width, repeated_width = (r.high / r.low for r in (once.mean, repeated.mean))
    assert repeated_width == pytest.approx(width, rel=0.15)


@pytest.mark.parametrize("values", [[1.0, 2.0, 3.0], [0.0] * 20])
def test_what_cannot_be_told_is_none(values: list[float]) -> None:
    """Too few units, or nothing spent at all, give no ratio."""
    found = amount_ratio(each_alone(values), each_alone(some_costs(5, 20)))
    assert found is not None
    assert found.mean is None
    assert found.median is None
