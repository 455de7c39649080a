"""`gateway report --routing`: what routing knows of each workload, and what it is worth."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from gateway.backends import Stores
from gateway.errors import ConfigError
from gateway.reporting.routing import PolicyValue, RoutingReport, routing_report
from gateway.text import formatting
from gateway.text.sanitize import one_line

_SHOWN = 50


async def read_routing(stores: Stores, tenant: str | None) -> RoutingReport:
    """The report over a tenant's workloads, None for all."""
    if stores.workloads is None:
        raise ConfigError("report: this store keeps no workloads")
    rates = await stores.workloads.rates()
    decided = await stores.workloads.decided(tenant=tenant)
    return routing_report(rates, decided, tenant=tenant)


def print_routing(console: Console, found: RoutingReport) -> None:
    """Both tables; the newest workloads only."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("client", "requested", "model", "runs", "success"):
        table.add_column(name, justify="left" if name != "runs" else "right")
    for rate in found.workloads[:_SHOWN]:
        runs = rate.solved + rate.failed
        cells = (rate.client or "-", rate.requested, rate.model)
        table.add_row(
            *(Text(one_line(cell, 40)) for cell in cells),
            f"{runs:,.0f}",
            formatting.percent(rate.solved / runs if runs else None, 1),
        )
    console.print(table)
    console.print(Text(f"\n{found.decided:,} runs decided by what was learned", style="bold"))
    if found.values:
        console.print(_values(found.values))


def _values(values: tuple[PolicyValue, ...]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("policy", "runs", "as many as", "success", "95 %", "cost a run", "over states"):
        table.add_column(name, justify="left" if name == "policy" else "right")
    for value in values:
        table.add_row(
            Text(one_line(value.policy, 40)),
            f"{value.runs:,}",
            f"{value.effective:,.0f}",
            formatting.percent(value.success, 1),
            f"{formatting.percent(value.low)} to {formatting.percent(value.high)}",
            formatting.money(value.cost_usd),
            _over(value),
        )
    return table


def _over(value: PolicyValue) -> str:
    if value.over_states is None:
        return ""
    gain, low, high = value.over_states
    return f"{gain:+.1f} ({low:+.1f} to {high:+.1f})"
