"""The runs under way in PostgreSQL: a few short reads for each."""

# ruff: noqa: S608 - statements are put together from names of this package; values are bound

from __future__ import annotations

import asyncpg

from gateway.stores import codec
from gateway.stores.postgres import filters
from gateway.stores.postgres.rows import injection_of, run_of, step_of
from gateway.stores.postgres.text import Arguments
from gateway.stores.queries import LiveQuery, LiveRun, RunFilter
from gateway.stores.totals import LENGTH_MONITOR, RunRecord

_STEP = ", ".join("NULL" if name == "content" else name for name in codec.STEP_COLUMNS)
_NEWEST = f"""
SELECT {_STEP} FROM steps WHERE run_pk = $1 AND composite IS NOT NULL
ORDER BY step_index DESC LIMIT 1
"""
# Read from the newest step back to the first one that is not stuck.
_CALM = f"""
SELECT step_index FROM steps WHERE run_pk = $1 AND (composite IS NULL OR NOT EXISTS (
    SELECT 1 FROM json_array_elements_text(coalesce(readings::json -> 'fired', '[]')) AS f(name)
    WHERE f.name <> '{LENGTH_MONITOR}'
)) AND step_index <= $2 ORDER BY step_index DESC LIMIT 1
"""
_GUIDANCE = f"""
SELECT {codec.INJECTIONS} FROM injections WHERE run_pk = $1 AND source <> 'e3'
ORDER BY step_index DESC, ordinal DESC LIMIT 1
"""
_SPENT = """
SELECT count(*), sum((call::json ->> 'cost_usd')::float8) FROM steps
WHERE run_pk = $1 AND at >= $2 AND call IS NOT NULL
"""


async def live_runs(query: LiveQuery, connection: asyncpg.Connection) -> tuple[LiveRun, ...]:
    """See RunStore.live_runs."""
    values = Arguments()
    condition = filters.where(RunFilter(tenant=query.tenant, since=query.begun), values)
    sql = f"""
        SELECT {codec.RUN}, r.pk FROM {codec.RUNS}
        WHERE {condition} AND r.ended_at IS NULL AND r.outcome IS NULL
            AND r.updated_at >= {values.add(query.since)}
        ORDER BY r.updated_at DESC, r.id DESC LIMIT {values.add(query.limit)}
    """
    rows = await connection.fetch(sql, *values)
    return tuple(
        [await _live_run(run_of(row), pk, query.spent_since, connection) for *row, pk in rows]
    )


async def _live_run(
    run: RunRecord, pk: int, spent_since: float, connection: asyncpg.Connection
) -> LiveRun:
    calls, spent = await connection.fetchrow(_SPENT, pk, spent_since)
    row = await connection.fetchrow(_NEWEST, pk)
    newest = step_of(run.id, row) if row else None
    stuck = 0
    if newest is not None and newest.fired:
        calm = await connection.fetchval(_CALM, pk, newest.step_index)
        stuck = newest.step_index - (-1 if calm is None else calm)
    guidance = await connection.fetchrow(_GUIDANCE, pk)
    return LiveRun(
        run=run,
        newest=newest,
        stuck_steps=stuck,
        guidance=injection_of(run.id, guidance) if guidance else None,
        spent_usd=spent,
        recent_calls=calls,
    )
