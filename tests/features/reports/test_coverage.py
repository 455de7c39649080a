"""Simulated experiments: do 95 % intervals hold the truth 95 times in 100?"""

from __future__ import annotations

import pytest

from gateway.features.reports.experiment import report
from tests.features.reports.builders import simulated

HALVES = {"on": 0.5, "off": 0.5}

# Experiments simulated, and the lowest and highest rate of coverage. 500 coverages of a true 95 %
# vary by one point (standard error); three of them are allowed, and a point for intervals that are
# a little too careful. 40 vary by 3.4 points.
FEW, MANY = (40, 0.85, 1.0), (500, 0.92, 0.985)

EFFECTS = {
    "none": (0.0, 1.0),
    "a tenth off the cost": (0.0, 0.9),
    "five points of success": (0.05, 1.0),
}


@pytest.mark.parametrize(
    ("repetitions", "low", "high"),
    [pytest.param(*FEW, marks=pytest.mark.slow), pytest.param(*MANY, marks=pytest.mark.nightly)],
    ids=["few", "many"],
)
@pytest.mark.parametrize("effect", EFFECTS)
def test_intervals_hold_the_truth_at_their_rate(
    effect: str, repetitions: int, low: float, high: float
) -> None:
    """Over simulated experiments of 300 units each interval covers at its stated rate."""
    gain, factor = EFFECTS[effect]
    held = {"success": 0, "mean": 0, "median": 0}
    flagged = 0
    for seed in range(repetitions):
        runs = simulated(
            seed, 300, success={"on": 0.6 + gain, "off": 0.6}, cost={"on": factor, "off": 1.0}
        )
        found = report(f"e{seed}", runs, shares=HALVES)
        (comparison,) = found.comparisons
        assert comparison.success is not None
        assert comparison.cost_usd is not None
        assert comparison.cost_usd.mean is not None
        assert comparison.cost_usd.median is not None
        held["success"] += comparison.success.low <= gain <= comparison.success.high
        for name in ("mean", "median"):
            ratio = getattr(comparison.cost_usd, name)
            held[name] += ratio.low <= factor <= ratio.high
        flagged += found.sample_ratio is not None and found.sample_ratio.suspicious
    rates = {name: held[name] / repetitions for name in ("success", "mean", "median")}
    print(f"{effect}: {rates}, {flagged} fair splits flagged")
    for name, rate in rates.items():
        assert low <= rate <= high, (name, rate)
    assert flagged <= 3


@pytest.mark.parametrize(
    ("repetitions", "least"),
    [pytest.param(8, 7, marks=pytest.mark.slow), pytest.param(100, 95, marks=pytest.mark.nightly)],
)
def test_a_broken_assignment_is_flagged(repetitions: int, least: int) -> None:
    """An assignment that loses one in five units of an arm is flagged, nearly every time."""
    flagged = 0
    for seed in range(repetitions):
        runs = simulated(seed, 2000, success={"on": 0.6, "off": 0.6}, cost={"on": 1.0, "off": 1.0})
        kept = [r for n, r in enumerate(runs) if r.arm == "off" or n % 5]
        found = report(f"e{seed}", kept, shares=HALVES)
        flagged += found.sample_ratio is not None and found.sample_ratio.suspicious
    assert flagged >= least
