"""The health summary: SQL sums the columns; the counters, which are JSON, are summed here."""

from __future__ import annotations

from functools import partial
from typing import Any

from gateway.stores.queries import (
    COSTS,
    RECENT_RUNS,
    SUMMED,
    HealthSummary,
    RunFilter,
    add_up,
    agent_health,
    recent_run,
    summary,
)
from gateway.stores.sql import filters
from gateway.stores.sql.engine import Connection, Dialect
from gateway.stores.totals import WARN_COMPOSITE

_FLOATS = ("overhead_ms", "latency_s")
_EXPRESSIONS = {
    "total_runs": "count(*)",
    "total_steps": "CAST(coalesce(sum(r.steps), 0) AS BIGINT)",
    "success_runs": "count(*) FILTER (WHERE r.outcome = 'success')",
    "failure_runs": "count(*) FILTER (WHERE r.outcome = 'failure')",
    "runs_with_fires": "count(*) FILTER (WHERE r.counts -> 'fired' <> '{}')",
    "clean_runs": f"count(*) FILTER (WHERE r.composite_peak < {WARN_COMPOSITE})",
    "peak_composite": "coalesce(max(r.composite_peak), 0.0)",
    **{
        name: f"CAST(coalesce(sum(r.{name}), 0) AS BIGINT)"
        for name in SUMMED
        if name not in _FLOATS
    },
    **{name: f"coalesce(sum(r.{name}), 0)" for name in _FLOATS},
    # sum() of only unknown values is NULL: the cost stays unknown.
    **{name: f"sum(r.{name})" for name in COSTS},
    "composite_sum": "coalesce(sum(r.composite_sum), 0.0)",
    "scored_steps": "CAST(coalesce(sum(r.scored_steps), 0) AS BIGINT)",
}
_MEAN = "CASE WHEN r.scored_steps > 0 THEN r.composite_sum / r.scored_steps ELSE 0.0 END"


async def summarize(
    runs: RunFilter, newest: int, dialect: Dialect, connection: Connection
) -> HealthSummary:
    """The HealthSummary of the newest runs that match."""
    values: dict[str, Any] = {}
    condition = filters.where(runs, values, dialect)
    fetch = partial(connection.fetch, **values)
    newest_first = "ORDER BY r.started_at DESC, r.id DESC LIMIT"
    within = f"(SELECT * FROM runs AS r WHERE {condition} {newest_first} {newest}) AS r"
    (row,) = await fetch(f"SELECT {', '.join(_EXPRESSIONS.values())} FROM {within}")
    sums = dict(zip(_EXPRESSIONS, row, strict=True))
    counted = await fetch(f"SELECT r.composite_peak, r.counts FROM {within}")
    by_agent = await fetch(f"""
        SELECT r.agent, count(*), avg({_MEAN}), max(r.composite_peak)
        FROM {within} GROUP BY r.agent ORDER BY count(*) DESC, r.agent
    """)
    recent = await fetch(f"""
        SELECT r.id, r.started_at, r.steps, {_MEAN}, r.composite_peak, r.counts
        FROM runs AS r WHERE {condition} {newest_first} {RECENT_RUNS}
    """)
    more = f"SELECT TRUE FROM runs AS r WHERE {condition} LIMIT 1 OFFSET {newest}"
    return summary(
        composite_sum=sums.pop("composite_sum"),
        scored_steps=sums.pop("scored_steps"),
        sums=sums,
        counted=await connection.computed(add_up, counted),
        by_agent=tuple([agent_health(*row) for row in by_agent]),
        recent=tuple([recent_run(*row) for row in reversed(recent)]),
        limited=sums["total_runs"] == newest and bool(await fetch(more)),
    )
