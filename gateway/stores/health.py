"""The derived numbers of a health summary, the same for every store."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from gateway.stores.queries import AgentHealth, HealthSummary, RecentRun
from gateway.stores.severity import severity_by

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


@dataclass(frozen=True, slots=True)
class Counted:
    """The counters of runs, added up, by the field names of RunTotals; and how many runs came to
    each severity."""

    counters: Mapping[str, Mapping[str, Any]]
    severity_runs: Mapping[str, int]


def add_up(runs: Iterable[Sequence[Any]]) -> Counted:
    """The sums over runs, each as (highest composite, counters as JSON).

    Here and not in SQL, which takes ten times as long to group what it finds in JSON.
    """
    counters: dict[str, dict[str, Any]] = {}
    severity_runs: dict[str, int] = {}
    for peak, text in runs:
        found = orjson.loads(text)
        severity = severity_by(peak, found["fired"], found["states"])
        severity_runs[severity] = severity_runs.get(severity, 0) + 1
        for counter, counts in found.items():
            if counts:
                sums = counters.setdefault(counter, {})
                for name, count in counts.items():
                    sums[name] = sums.get(name, 0) + count
    return Counted(counters, severity_runs)


def summary(
    *,
    sums: Mapping[str, Any],
    composite_sum: float,
    scored_steps: int,
    counted: Counted,
    by_agent: tuple[AgentHealth, ...],
    recent: tuple[RecentRun, ...],
    limited: bool,
) -> HealthSummary:
    """The summary from sums over the runs: computes the ratios and rounds."""
    counters = counted.counters
    return HealthSummary(
        **{**sums, "peak_composite": _rounded(sums["peak_composite"])},
        clean_run_rate=_ratio(sums["clean_runs"], sums["total_runs"]),
        mean_composite=_ratio(composite_sum, scored_steps),
        cached_share=_ratio(sums["cached_tokens"], sums["input_tokens"]),
        fires=counters.get("fired", {}),
        severity=counters.get("severity", {}),
        states={name: n for name, n in counters.get("states", {}).items() if n},
        failure_types=counters.get("failure_types", {}),
        models=counters.get("models", {}),
        unsteered=counters.get("unsteered", {}),
        estimated=counters.get("estimated", {}),
        guidance=counters.get("guidance", {}),
        severity_runs=counted.severity_runs,
        by_agent=by_agent,
        recent=recent,
        limited=limited,
    )


def agent_health(agent: str, runs: int, mean: float, peak: float) -> AgentHealth:
    """One agent's row, rounded."""
    return AgentHealth(
        agent=agent, runs=runs, mean_composite=_rounded(mean), peak_composite=_rounded(peak)
    )


def recent_run(
    run_id: str, started_at: float, steps: int, mean: float, peak: float, counts: str
) -> RecentRun:
    """One point of the sparkline, rounded; `counts`: the run's counters as JSON."""
    counters = orjson.loads(counts)
    return RecentRun(
        run_id=run_id,
        started_at=started_at,
        steps=steps,
        mean_composite=_rounded(mean),
        peak_composite=_rounded(peak),
        severity=severity_by(peak, counters["fired"], counters["states"]),
    )


def _ratio(part: float, whole: float) -> float:
    return _rounded(part / whole) if whole else 0.0


def _rounded(value: float) -> float:
    return round(value, _DECIMALS)
