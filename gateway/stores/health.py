"""The derived numbers of a health summary, the same for every store."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.stores.queries import AgentHealth, HealthSummary, RecentRun

# Source: reference section 12: a sparkline of the last 30 runs, numbers to 4 decimals.
RECENT_RUNS = 30
_DECIMALS = 4

SUMMED = (
    "calls",
    "errors",
    "retries",
    "injections",
    "input_tokens",
    "cached_tokens",
    "cache_write_tokens",
    "output_tokens",
    "reasoning_tokens",
    "unpriced_calls",
    "overhead_ms",
    "latency_s",
)
"""The fields of RunTotals that add up."""

COSTS = ("cost_usd", "cost_unsteered_usd", "saved_usd")
"""The fields whose unknown values are skipped in a sum; unknown when all are."""


def summary(
    *,
    sums: Mapping[str, Any],
    composite_sum: float,
    scored_steps: int,
    counters: Mapping[str, Mapping[str, Any]],
    by_agent: tuple[AgentHealth, ...],
    recent: tuple[RecentRun, ...],
    severity_runs: Mapping[str, int],
) -> HealthSummary:
    """The summary from sums over the runs: computes the ratios and rounds.

    `counters` are those of RunTotals, by its field names.
    """
    return HealthSummary(
        **{**sums, "peak_composite": _rounded(sums["peak_composite"])},
        clean_run_rate=_ratio(sums["clean_runs"], sums["total_runs"]),
        mean_composite=_ratio(composite_sum, scored_steps),
        cached_share=_ratio(sums["cached_tokens"], sums["input_tokens"]),
        fires=counters.get("fired", {}),
        severity=counters.get("severity", {}),
        states=counters.get("states", {}),
        failure_types=counters.get("failure_types", {}),
        models=counters.get("models", {}),
        unsteered=counters.get("unsteered", {}),
        estimated=counters.get("estimated", {}),
        guidance=counters.get("guidance", {}),
        severity_runs=severity_runs,
        by_agent=by_agent,
        recent=recent,
    )


def agent_health(agent: str, runs: int, mean: float, peak: float) -> AgentHealth:
    """One agent's row, rounded."""
    return AgentHealth(
        agent=agent, runs=runs, mean_composite=_rounded(mean), peak_composite=_rounded(peak)
    )


def recent_run(
    run_id: str, started_at: float, steps: int, mean: float, peak: float, severity: str
) -> RecentRun:
    """One point of the sparkline, rounded."""
    return RecentRun(
        run_id=run_id,
        started_at=started_at,
        steps=steps,
        mean_composite=_rounded(mean),
        peak_composite=_rounded(peak),
        severity=severity,
    )


def _ratio(part: float, whole: float) -> float:
    return _rounded(part / whole) if whole else 0.0


def _rounded(value: float) -> float:
    return round(value, _DECIMALS)
