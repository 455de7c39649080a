"""The curve of handing over or ending at each risk."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from gateway.commands.report import risk_table
from gateway.dashboard.experiments import health_values
from gateway.reporting.at_risk import risk_curve
from gateway.stores.queries import HealthSummary
from gateway.stores.totals import HAND_OVER, RiskSums, RunTotals, count_at_risk
from steering_gateway_testing.store_conformance.records import a_chat, a_step


def sums() -> RiskSums:
    """Four judged runs of ten steps: two reach .80, of which one failed; two runs do not count."""
    found: RiskSums = {}
    reached = {"0.50": 2, "0.80": 5}, {"0.50": 100, "0.80": 400}
    for outcome in ("failure", "success", None):
        count_at_risk(found, *reached, outcome=outcome, steps=10, tokens=1000)
    for outcome in ("success", "success"):
        count_at_risk(found, {}, {}, outcome=outcome, steps=10, tokens=1000)
    handed = {"0.80": 5, HAND_OVER: 5}
    count_at_risk(found, handed, {"0.80": 400}, outcome="failure", steps=10, tokens=1000)
    return found


def test_a_level_shows_what_it_would_have_come_to() -> None:
    """Shares of the runs with an outcome; runs without one, or handed over, are left out."""
    curve = risk_curve(sums())
    assert (curve.runs, curve.failed, curve.left_out) == (4, 1, 1)
    by_level = {row.level: row for row in curve.rows}
    row = by_level[0.8]
    assert (row.runs, row.failed, row.reached, row.precision) == (2, 1, 0.5, 0.5)
    assert row.solved_lost == pytest.approx(1 / 3)
    assert row.steps_ahead == pytest.approx(10 / 40)
    assert row.tokens_ahead == pytest.approx(1200 / 4000)
    assert (by_level[0.85].runs, by_level[0.85].precision) == (0, None)
    assert "Runs without an outcome are not counted" in curve.note
    assert risk_curve({}).rows[0].reached is None


def test_report_and_page_show_the_same_curve() -> None:
    """One function makes both."""
    summary = HealthSummary(at_risk=sums())
    assert health_values(summary)["curve"] == risk_curve(summary.at_risk)
    assert risk_table(risk_curve(summary.at_risk)).row_count == 10


def test_the_first_lasting_of_each_level_is_kept() -> None:
    """With the step, and the tokens of the calls before it, also where one commit has many."""
    call = a_chat(input_tokens=100, output_tokens=10)
    risks = (0.0, 0.62, 0.58, 0.71)
    steps = [a_step(n, call=call, lasting_risk=risk) for n, risk in enumerate(risks, 1)]
    whole = RunTotals().including(steps, [call] * 4, retries=0, injections=0)
    assert whole.at_risk == {"0.50": 2, "0.55": 2, "0.60": 2, "0.65": 4, "0.70": 4}
    assert whole.at_risk_tokens == {"0.50": 110, "0.55": 110, "0.60": 110} | {
        "0.65": 330,
        "0.70": 330,
    }
    parts = RunTotals()
    for step in steps:
        parts = parts.including([step], [call], retries=0, injections=0)
    assert parts == replace(whole, composite_sum=parts.composite_sum)
