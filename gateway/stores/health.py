"""A health summary's derived figures, alike for every backend."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from typing import Any

from gateway.stores.queries import AgentHealth, HealthSummary, RecentRun
from gateway.stores.totals import WARN_COMPOSITE, RunRecord, RunTotals, plus

# Source: reference section 12: a sparkline of the last 30 runs, figures to 4 decimals.
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
"""The RunTotals that add up."""

COSTS = ("cost_usd", "cost_unsteered_usd", "saved_usd")
"""Those that add up where they are known, and stay unknown where none is."""


def summary(
    *,
    sums: Mapping[str, Any],
    composite_sum: float,
    scored_steps: int,
    counters: Mapping[str, Mapping[str, int]],
    by_agent: tuple[AgentHealth, ...],
    recent: tuple[RecentRun, ...],
) -> HealthSummary:
    """The summary of plain sums over the runs: ratios worked out, figures rounded.

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
        by_agent=by_agent,
        recent=recent,
    )


def of_runs(runs: Sequence[RunRecord]) -> HealthSummary:
    """The summary of runs held in memory."""
    totals = [run.totals for run in runs]
    counters = ("fired", "severity", "states", "failure_types", "models")
    return summary(
        sums={
            "total_runs": len(runs),
            "total_steps": sum(t.steps for t in totals),
            "success_runs": sum(run.outcome == "success" for run in runs),
            "failure_runs": sum(run.outcome == "failure" for run in runs),
            "runs_with_fires": sum(bool(t.fired) for t in totals),
            "clean_runs": sum(t.composite_peak < WARN_COMPOSITE for t in totals),
            "peak_composite": max((t.composite_peak for t in totals), default=0.0),
            **{name: sum(getattr(t, name) for t in totals) for name in SUMMED},
            **{name: reduce(plus, (getattr(t, name) for t in totals), None) for name in COSTS},
        },
        composite_sum=sum(t.composite_sum for t in totals),
        scored_steps=sum(t.scored_steps for t in totals),
        counters={name: _added(getattr(t, name) for t in totals) for name in counters},
        by_agent=_by_agent(runs),
        recent=tuple(
            recent_run(
                run.id,
                run.started_at,
                run.totals.steps,
                run.totals.composite_mean,
                run.totals.composite_peak,
            )
            for run in sorted(runs, key=lambda run: (run.started_at, run.id))[-RECENT_RUNS:]
        ),
    )


def _by_agent(runs: Sequence[RunRecord]) -> tuple[AgentHealth, ...]:
    groups: dict[str, list[RunTotals]] = {}
    for run in runs:
        groups.setdefault(run.agent, []).append(run.totals)
    return tuple(
        agent_health(
            agent,
            len(group),
            sum(totals.composite_mean for totals in group) / len(group),
            max(totals.composite_peak for totals in group),
        )
        for agent, group in sorted(groups.items(), key=lambda item: (-len(item[1]), item[0]))
    )


def _added(counters: Iterable[Mapping[str, int]]) -> Mapping[str, int]:
    total: Counter[str] = Counter()
    for counter in counters:
        total.update(counter)
    return dict(total)


def agent_health(agent: str, runs: int, mean: float, peak: float) -> AgentHealth:
    """One agent's line, rounded."""
    return AgentHealth(
        agent=agent, runs=runs, mean_composite=_rounded(mean), peak_composite=_rounded(peak)
    )


def recent_run(run_id: str, started_at: float, steps: int, mean: float, peak: float) -> RecentRun:
    """One point of the sparkline, rounded."""
    return RecentRun(
        run_id=run_id,
        started_at=started_at,
        steps=steps,
        mean_composite=_rounded(mean),
        peak_composite=_rounded(peak),
    )


def _ratio(part: float, whole: float) -> float:
    return _rounded(part / whole) if whole else 0.0


def _rounded(value: float) -> float:
    return round(value, _DECIMALS)
