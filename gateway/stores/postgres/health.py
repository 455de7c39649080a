"""The health summary: SQL sums the columns; the counters, which are JSON, are summed here."""

# ruff: noqa: S608 - statements are put together from names of this package; values are bound

from __future__ import annotations

import asyncio
from typing import Any

import asyncpg

from gateway.stores.postgres import filters
from gateway.stores.postgres.group import SUMS
from gateway.stores.postgres.text import Arguments, read_json, read_text
from gateway.stores.queries import (
    COSTS,
    RECENT_RUNS,
    SUMMED,
    Counted,
    HealthSummary,
    RunFilter,
    add_up,
    agent_health,
    recent_run,
    summary,
)
from gateway.stores.totals import WARN_COMPOSITE

_EXPRESSIONS = {
    "total_runs": "count(*)",
    "total_steps": "coalesce(sum(r.steps), 0)::bigint",
    "success_runs": "count(*) FILTER (WHERE r.outcome = 'success')",
    "failure_runs": "count(*) FILTER (WHERE r.outcome = 'failure')",
    "runs_with_fires": "count(*) FILTER (WHERE r.counts -> 'fired' <> '{}')",
    "clean_runs": f"count(*) FILTER (WHERE r.composite_peak < {WARN_COMPOSITE})",
    "peak_composite": "coalesce(max(r.composite_peak), 0)",
    **{name: f"coalesce(sum(r.{name}), 0)::{SUMS[name]}" for name in SUMMED},
    # sum() of only unknown values is NULL: the cost stays unknown.
    **{name: f"sum(r.{name})" for name in COSTS},
    "composite_sum": "coalesce(sum(r.composite_sum), 0)",
    "scored_steps": "coalesce(sum(r.scored_steps), 0)::bigint",
}
_MEAN = "CASE WHEN r.scored_steps > 0 THEN r.composite_sum / r.scored_steps ELSE 0 END"


async def summarize(runs: RunFilter, newest: int, connection: asyncpg.Connection) -> HealthSummary:
    """The HealthSummary of the newest runs that match."""
    values = Arguments()
    condition = filters.where(runs, values)
    within = f"""(
        SELECT * FROM runs AS r WHERE {condition}
        ORDER BY r.started_at DESC, r.id DESC LIMIT {newest}
    ) AS r"""
    sql = f"SELECT {', '.join(_EXPRESSIONS.values())} FROM {within}"
    row = await connection.fetchrow(sql, *values)
    sums = dict(zip(_EXPRESSIONS, row or (), strict=True))
    return summary(
        composite_sum=sums.pop("composite_sum"),
        scored_steps=sums.pop("scored_steps"),
        sums=sums,
        counted=await _counted(within, values, connection),
        by_agent=await _by_agent(within, values, connection),
        recent=await _recent(condition, values, connection),
        limited=sums["total_runs"] == newest
        and await _are_more(condition, newest, values, connection),
    )


async def _are_more(
    condition: str, newest: int, values: Arguments, connection: asyncpg.Connection
) -> bool:
    sql = f"SELECT TRUE FROM runs AS r WHERE {condition} OFFSET {newest} LIMIT 1"
    return bool(await connection.fetch(sql, *values))


async def _counted(within: str, values: Arguments, connection: asyncpg.Connection) -> Counted:
    rows = await connection.fetch(f"SELECT r.composite_peak, r.counts FROM {within}", *values)
    return await asyncio.to_thread(add_up, ((peak, read_json(counts)) for peak, counts in rows))


async def _by_agent(
    within: str, values: Arguments, connection: asyncpg.Connection
) -> tuple[Any, ...]:
    sql = f"""
        SELECT r.agent, count(*), avg({_MEAN}), max(r.composite_peak)
        FROM {within} GROUP BY r.agent ORDER BY count(*) DESC, r.agent
    """
    rows = await connection.fetch(sql, *values)
    return tuple(agent_health(read_text(agent), *others) for agent, *others in rows)


async def _recent(
    condition: str, values: Arguments, connection: asyncpg.Connection
) -> tuple[Any, ...]:
    sql = f"""
        SELECT r.id, r.started_at, r.steps, {_MEAN}, r.composite_peak, r.counts
        FROM runs AS r WHERE {condition}
        ORDER BY r.started_at DESC, r.id DESC LIMIT {RECENT_RUNS}
    """
    rows = await connection.fetch(sql, *values)
    return tuple(recent_run(*[*some, read_json(counts)]) for *some, counts in reversed(rows))
