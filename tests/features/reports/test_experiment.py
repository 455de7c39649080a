"""A report: its arms, comparisons and caveats."""

from __future__ import annotations

import pytest

from gateway.features.reports.experiment import report
from gateway.features.reports.results import effects_of
from tests.features.reports.builders import a_run, simulated

HALVES = {"on": 0.5, "off": 0.5}


def two_arms(count: int = 40, **changes: object) -> list:
    """Runs alternating between on and off, three in four successful."""
    return [
        a_run(
            n,
            arm=("on", "off")[n % 2],
            outcome="failure" if n // 2 % 4 == 0 else "success",
            **changes,
        )
        for n in range(count)
    ]


def codes(found: object) -> set[str]:
    return {caveat.code for caveat in found.caveats}  # type: ignore[attr-defined]


def test_an_arm_sums_its_runs() -> None:
    """Counts, rates and typical values are the arm's own."""
    found = report("e", two_arms(), shares=HALVES)
    on, off = found.arms
    assert (on.arm, off.arm, found.baseline) == ("on", "off", "off")
    assert (on.runs, on.units, on.unfinished) == (20, 20, 0)
    assert on.outcomes == {"failure": 5, "success": 15}
    assert on.success is not None
    assert on.success.rate == 0.75
    assert on.tokens is not None
    assert on.tokens.mean == 1000
    assert on.cost_usd is not None
    assert on.cost_usd.median == 0.5
    assert on.cached_share == 0.5


def test_every_arm_is_compared_with_off() -> None:
    """On and shadow both stand against off; without it, on stands against shadow."""
    runs = [a_run(n, arm=("on", "shadow", "off")[n % 3]) for n in range(90)]
    found = report("e", runs)
    assert [(c.arm, c.baseline) for c in found.comparisons] == [("on", "off"), ("shadow", "off")]
    found = report("e", [run for run in runs if run.arm != "off"])
    assert [(c.arm, c.baseline) for c in found.comparisons] == [("on", "shadow")]


def test_unjudged_runs_count_for_cost_only() -> None:
    """A run nobody judged is no failure."""
    runs = [a_run(n, arm="off", outcome=None if n % 2 else "success") for n in range(20)]
    (arm,) = report("e", runs).arms
    assert (arm.unfinished, arm.runs) == (10, 20)
    assert arm.success is not None
    assert (arm.success.trials, arm.success.rate) == (10, 1.0)
    assert arm.cost_usd is not None
    assert arm.cost_usd.runs == 20


def test_runs_of_unknown_price_have_no_cost() -> None:
    """An unknown price is left out and said so; it is never counted as nothing."""
    runs = two_arms()
    priceless = a_run(99, arm="on", cost_usd=None)
    found = report("e", [*runs, priceless], shares=HALVES)
    on = found.arms[0]
    assert on.cost_usd is not None
    assert (on.runs, on.cost_usd.runs, on.unpriced) == (21, 20, 1)
    assert "unpriced" in codes(found)


def test_what_is_estimated_is_said_for_each_arm() -> None:
    """The estimated part of an arm's runs is summed, and there is a caveat."""
    part = {"calls": 2, "tokens": 300, "cost_usd": 0.25}
    guessed = [a_run(n, arm="on", estimated=part) for n in (98, 99)]
    found = report("e", [*two_arms(), *guessed], shares=HALVES)
    on, off = found.arms
    assert (on.estimated_calls, on.estimated_tokens, on.estimated_usd) == (4, 600, 0.5)
    assert (off.estimated_calls, off.estimated_tokens, off.estimated_usd) == (0, 0, 0)
    (caveat,) = [caveat for caveat in found.caveats if caveat.code == "estimated"]
    assert "(on 4)" in caveat.message
    assert "estimated" not in codes(report("e", two_arms(), shares=HALVES))


def test_no_runs_make_a_report_too() -> None:
    """An experiment that has just begun has an empty report."""
    found = report("e", [], shares=HALVES)
    assert (found.runs, found.arms, found.comparisons) == (0, (), ())
    assert found.first_at is None


@pytest.mark.parametrize(
    ("runs", "shares", "code"),
    [
        (two_arms(40), HALVES, "few_runs"),
        (two_arms(400), HALVES, "inconclusive"),
        (two_arms(400), None, "shares_unknown"),
        ([a_run(n) for n in range(50)], HALVES, "no_comparison"),
        ([a_run(n, outcome=None, arm=("on", "off")[n % 2]) for n in range(9)], None, "no_outcomes"),
        (two_arms(40, unit="u"), HALVES, "crossed_units"),
        (two_arms(400), {"on": 0.9, "off": 0.1}, "sample_ratio"),
        ([a_run(n, policy_digest=f"p{n % 2}") for n in range(9)], None, "policy_changed"),
        (
            [a_run(n, arm=("on", "off")[n % 2], unit=f"u{n % 20}") for n in range(80)],
            HALVES,
            "repeated_units",
        ),
        (
            [
                a_run(n, arm=("on", "off")[n % 2], outcome=None if n % 4 == 0 else "success")
                for n in range(80)
            ],
            HALVES,
            "uneven_outcomes",
        ),
    ],
)
def test_what_stands_against_the_figures_is_said(runs: list, shares: dict, code: str) -> None:
    """Each reservation has its code, and a sentence."""
    found = report("e", runs, shares=shares)
    assert code in codes(found)
    assert all(len(caveat.message) > 30 for caveat in found.caveats)


def test_a_fair_and_large_sample_has_no_grave_caveat() -> None:
    """A clear effect in enough runs is only warned of looking again and again."""
    truth = {"on": 0.8, "off": 0.4}
    runs = simulated(5, 2000, success=truth, cost={"on": 0.7, "off": 1.0})
    found = report("e5", runs, shares=HALVES)
    assert codes(found) == {"looks"}
    (comparison,) = found.comparisons
    effects = {name: effect for name, _, effect in effects_of(comparison)}
    assert effects["Success"].low > 0
    assert effects["Cost per run, mean"].high < 1
    assert effects["Steps per run, mean"].low <= 1 <= effects["Steps per run, mean"].high
