"""The runs under way in SQLite: a few short reads for each."""

# ruff: noqa: S608 - statements are put together from names of this package; values are bound

from __future__ import annotations

from typing import Any

import apsw

from gateway.stores import codec
from gateway.stores.queries import LiveQuery, LiveRun, RunFilter
from gateway.stores.sqlite import filters
from gateway.stores.totals import LENGTH_MONITOR, RunRecord

_STEP = ", ".join("NULL" if name == "content" else name for name in codec.STEP_COLUMNS)
_NEWEST = f"""
SELECT {_STEP} FROM steps WHERE run_pk = ? AND composite IS NOT NULL
ORDER BY step_index DESC LIMIT 1
"""
# Read from the newest step back to the first one that is not stuck.
_CALM = f"""
SELECT step_index FROM steps WHERE run_pk = ? AND (composite IS NULL OR NOT EXISTS (
    SELECT 1 FROM json_each(readings, '$.fired') WHERE value <> '{LENGTH_MONITOR}'
)) AND step_index <= ? ORDER BY step_index DESC LIMIT 1
"""
_GUIDANCE = f"""
SELECT {codec.INJECTIONS} FROM injections WHERE run_pk = ? AND source <> 'e3'
ORDER BY step_index DESC, ordinal DESC LIMIT 1
"""
_SPENT = """
SELECT count(*), sum(call ->> '$.cost_usd') FROM steps
WHERE run_pk = ? AND at >= ? AND call IS NOT NULL
"""


def live_runs(query: LiveQuery, connection: apsw.Connection) -> tuple[LiveRun, ...]:
    """See RunStore.live_runs."""
    condition, values = filters.where(RunFilter(tenant=query.tenant, since=query.begun))
    sql = f"""
        SELECT {codec.RUN}, r.pk FROM {codec.RUNS}
        WHERE {condition} AND r.ended_at IS NULL AND r.outcome IS NULL AND r.updated_at >= ?
        ORDER BY r.updated_at DESC, r.id DESC LIMIT ?
    """
    rows: list[Any] = connection.execute(sql, (*values, query.since, query.limit)).fetchall()
    return tuple(
        _live_run(codec.run_of(row[:-1]), row[-1], query.spent_since, connection) for row in rows
    )


def _live_run(run: RunRecord, pk: int, spent_since: float, connection: apsw.Connection) -> LiveRun:
    summed: list[Any] = connection.execute(_SPENT, (pk, spent_since)).fetchall()
    calls, spent = summed[0]
    found: list[Any] = connection.execute(_NEWEST, (pk,)).fetchall()
    newest = codec.step_of(run.id, found[0]) if found else None
    stuck = 0
    if newest is not None and newest.fired:
        calm = connection.execute(_CALM, (pk, newest.step_index)).get
        stuck = newest.step_index - (-1 if calm is None else calm)
    guidance = connection.execute(_GUIDANCE, (pk,)).fetchall()
    return LiveRun(
        run=run,
        newest=newest,
        stuck_steps=stuck,
        guidance=codec.injection_of(run.id, guidance[0]) if guidance else None,
        spent_usd=spent,
        recent_calls=calls,
    )
