"""Routing policies on recorded tasks, as a table."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from gateway.offline.evaluation import Estimate
from gateway.offline.routing_policies import PolicyResult
from gateway.text import formatting


def policy_table(results: Sequence[PolicyResult]) -> Table:
    """One row a policy: success, cost, and points over the coin at equal cost."""
    table = Table(
        title="routing policies on tasks that several models ran, each task decided by the others",
        title_justify="left",
    )
    table.add_column("policy")
    for name in ("tasks", "success", "95 %", "cost a run", "over a coin", "95 %"):
        table.add_column(name, justify="right")
    for result in results:
        table.add_row(
            result.policy,
            str(result.tasks),
            formatting.percent(result.success.value, 1),
            _interval(result.success, 100.0),
            formatting.money(result.cost_usd),
            formatting.points(result.over_coin.value / 100),
            _interval(result.over_coin, 1.0),
        )
    return table


def _interval(estimate: Estimate, scale: float) -> str:
    return f"{estimate.low * scale:.1f} to {estimate.high * scale:.1f}"
