"""Simulated experiments: do 95 % intervals hold the truth 95 times in 100?"""

from __future__ import annotations

import pytest

from gateway.reporting import report
from tests.reporting.builders import simulated

REPETITIONS = 500
HALVES = {"on": 0.5, "off": 0.5}

# 500 coverages of a true 95 % vary by one point (standard error); three of them are allowed, and a
# point for intervals that are a little too careful.
LOW, HIGH = 0.92, 0.985

EFFECTS = {
    "none": (0.0, 1.0),
    "a tenth off the cost": (0.0, 0.9),
    "five points of success": (0.05, 1.0),
}


@pytest.mark.slow
@pytest.mark.parametrize("effect", EFFECTS)
def test_intervals_hold_the_truth_at_their_rate(effect: str) -> None:
    """Over 500 simulated experiments of 300 units each interval covers at its stated rate."""
    gain, factor = EFFECTS[effect]
    held = {"success": 0, "mean": 0, "median": 0}
    flagged = 0
    for seed in range(REPETITIONS):
        runs = simulated(
            seed,
            300,
            success={"on": 0.6 + gain, "off": 0.6},
            cost={"on": factor, "off": 1.0},
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
    rates = {name: held[name] / REPETITIONS for name in ("success", "mean", "median")}
    print(f"{effect}: {rates}, {flagged} fair splits flagged")
    for name, rate in rates.items():
        assert LOW <= rate <= HIGH, (name, rate)
    assert flagged <= 3


@pytest.mark.slow
def test_a_broken_assignment_is_flagged() -> None:
    """An assignment that loses one in five units of an arm is flagged, nearly every time."""
    flagged = 0
    for seed in range(100):
        runs = simulated(seed, 2000, success={"on": 0.6, "off": 0.6}, cost={"on": 1.0, "off": 1.0})
        kept = [r for n, r in enumerate(runs) if r.arm == "off" or n % 5]
        found = report(f"e{seed}", kept, shares=HALVES)
        flagged += found.sample_ratio is not None and found.sample_ratio.suspicious
    assert flagged >= 95
