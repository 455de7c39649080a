"""The health summary: SQLite sums the columns; the counters, which are JSON, are summed here."""

# ruff: noqa: S608 - statements are put together from names of this package; values are bound

from __future__ import annotations

from typing import Any

import apsw

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
from gateway.stores.sqlite import filters
from gateway.stores.totals import WARN_COMPOSITE

_EXPRESSIONS = {
    "total_runs": "count(*)",
    "total_steps": "coalesce(sum(r.steps), 0)",
    "success_runs": "coalesce(sum(r.outcome = 'success'), 0)",
    "failure_runs": "coalesce(sum(r.outcome = 'failure'), 0)",
    "runs_with_fires": "coalesce(sum(r.counts ->> '$.fired' <> '{}'), 0)",
    "clean_runs": f"coalesce(sum(r.composite_peak < {WARN_COMPOSITE}), 0)",
    "peak_composite": "coalesce(max(r.composite_peak), 0.0)",
    **{name: f"coalesce(sum(r.{name}), 0)" for name in SUMMED},
    # sum() of only unknown values is NULL: the cost stays unknown.
    **{name: f"sum(r.{name})" for name in COSTS},
    "composite_sum": "coalesce(sum(r.composite_sum), 0.0)",
    "scored_steps": "coalesce(sum(r.scored_steps), 0)",
}
_MEAN = "iif(r.scored_steps, r.composite_sum / r.scored_steps, 0.0)"


def summarize(runs: RunFilter, newest: int, connection: apsw.Connection) -> HealthSummary:
    """The HealthSummary of the newest runs that match."""
    condition, values = filters.where(runs)
    within = f"""(
        SELECT * FROM runs AS r WHERE {condition}
        ORDER BY r.started_at DESC, r.id DESC LIMIT {newest}
    ) AS r"""
    sql = f"SELECT {', '.join(_EXPRESSIONS.values())} FROM {within}"
    sums = dict(zip(_EXPRESSIONS, connection.execute(sql, values).get, strict=True))
    counted = connection.execute(f"SELECT r.composite_peak, r.counts FROM {within}", values)
    more = f"SELECT 1 FROM runs AS r WHERE {condition} LIMIT 1 OFFSET {newest}"
    limited = sums["total_runs"] == newest and bool(connection.execute(more, values).fetchall())
    return summary(
        composite_sum=sums.pop("composite_sum"),
        scored_steps=sums.pop("scored_steps"),
        sums=sums,
        counted=add_up(counted),
        by_agent=_by_agent(within, values, connection),
        recent=_recent(condition, values, connection),
        limited=limited,
    )


def _by_agent(within: str, values: list[Any], connection: apsw.Connection) -> tuple[Any, ...]:
    sql = f"""
        SELECT r.agent, count(*), avg({_MEAN}), max(r.composite_peak)
        FROM {within} GROUP BY r.agent ORDER BY count(*) DESC, r.agent
    """
    return tuple(agent_health(*row) for row in connection.execute(sql, values))


def _recent(condition: str, values: list[Any], connection: apsw.Connection) -> tuple[Any, ...]:
    sql = f"""
        SELECT r.id, r.started_at, r.steps, {_MEAN}, r.composite_peak, r.counts
        FROM runs AS r WHERE {condition}
        ORDER BY r.started_at DESC, r.id DESC LIMIT {RECENT_RUNS}
    """
    rows = connection.execute(sql, values).fetchall()
    return tuple(recent_run(*row) for row in reversed(rows))
