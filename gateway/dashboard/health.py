"""How the runs go, taken together."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from gateway.api.filters import RUN_FILTERS
from gateway.dashboard.course import MONITORS
from gateway.dashboard.pages import FRAGMENT, Page, Visit
from gateway.dashboard.runs import PERIOD, STATES, chosen, filter_values
from gateway.dashboard.small_charts import level, peak, sparkline, stacked
from gateway.stores.queries import HealthSummary

PARAMS = (*RUN_FILTERS, PERIOD, FRAGMENT)
SEVERITIES = ("low", "warn", "danger")
_MOST_LISTED = 12


async def show(visit: Visit) -> Page:
    """The figures of the runs chosen."""
    read = visit.runtime.runs.health_summary(chosen(visit))
    if visit.fragment:
        return Page(template="health_body.html", values=figures_of(await read))
    summary, filters = await asyncio.gather(read, filter_values(visit))
    values = {"title": "Health", **figures_of(summary), **filters}
    return Page(template="health.html", values=values)


def figures_of(summary: HealthSummary) -> dict[str, Any]:
    """The summary with its drawings."""
    judged = summary.success_runs + summary.failure_runs
    fires = {name: summary.fires.get(name, 0) for name in (*MONITORS, *summary.fires)}
    return {
        "summary": summary,
        "success_rate": summary.success_runs / judged if judged else None,
        "judged": judged,
        "overhead_ms": summary.overhead_ms / summary.calls if summary.calls else None,
        "latency_s": summary.latency_s / summary.calls if summary.calls else None,
        "spark": sparkline(summary.recent),
        "severity_bar": stacked(summary.severity, SEVERITIES, "severity", 14),
        "severities": shares(summary.severity, SEVERITIES),
        "state_bar": stacked(summary.states, STATES, "state", 14),
        "states": shares(summary.states, STATES),
        "fires": ranked(fires),
        "failure_types": ranked(summary.failure_types),
        "models": ranked(summary.models),
        "agents": [(agent, peak(agent.peak_composite)) for agent in summary.by_agent],
    }


def shares(counts: Mapping[str, int], order: tuple[str, ...]) -> list[tuple[str, int, float]]:
    """(name, count, share of all) in a fixed order, what never occurred left out."""
    total = sum(counts.values())
    return [(name, counts[name], counts[name] / total) for name in order if counts.get(name)]


def ranked(counts: Mapping[str, int]) -> list[tuple[str, int, Any]]:
    """(name, count, bar against the most frequent), most frequent first."""
    most = max(counts.values(), default=0) or 1
    listed = sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:_MOST_LISTED]
    return [(name, count, level(count, whole=most)) for name, count in listed]
