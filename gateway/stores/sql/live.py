"""The runs under way: a few short reads for each."""

from __future__ import annotations

from typing import Any

from gateway.stores import codec
from gateway.stores.queries import LiveQuery, LiveRun, RunFilter
from gateway.stores.sql import filters
from gateway.stores.sql.engine import Connection, Dialect
from gateway.stores.totals import LENGTH_MONITOR, RunRecord

_STEP = ", ".join("NULL" if name == "content" else name for name in codec.STEP_COLUMNS)
_NEWEST = f"""
SELECT {_STEP} FROM steps WHERE run_pk = :pk AND composite IS NOT NULL
ORDER BY step_index DESC LIMIT 1
"""
# Read from the newest step back to the first one that is not stuck.
_CALM = """
SELECT step_index FROM steps WHERE run_pk = :pk AND (composite IS NULL OR NOT EXISTS (
    SELECT 1 FROM {fired} WHERE value <> '{length}'
)) AND step_index <= :newest ORDER BY step_index DESC LIMIT 1
"""
_GUIDANCE = f"""
SELECT {codec.INJECTIONS} FROM injections WHERE run_pk = :pk AND source <> 'e3'
ORDER BY step_index DESC, ordinal DESC LIMIT 1
"""
_SPENT = """
SELECT count(*), sum(CAST({cost} AS DOUBLE PRECISION)) FROM steps
WHERE run_pk = :pk AND at >= :since AND call IS NOT NULL
"""


async def live_runs(
    query: LiveQuery, dialect: Dialect, connection: Connection
) -> tuple[LiveRun, ...]:
    values: dict[str, Any] = {}
    wanted = RunFilter(tenant=query.tenant, since=query.begun)
    sql = f"""
        SELECT {codec.RUN}, r.pk FROM {codec.RUNS}
        WHERE {filters.where(wanted, values, dialect)} AND r.ended_at IS NULL
            AND r.outcome IS NULL AND r.updated_at >= :seen
        ORDER BY r.updated_at DESC, r.id DESC LIMIT :limit
    """
    rows = await connection.fetch(sql, **values, seen=query.since, limit=query.limit)
    live = _Live(query.spent_since, dialect, connection)
    return tuple([await live.run(codec.run_of(row), pk) for *row, pk in rows])


class _Live:
    def __init__(self, spent_since: float, dialect: Dialect, connection: Connection) -> None:
        self._since = spent_since
        self._connection = connection
        self._spent = _SPENT.format(cost=dialect.member("call", "cost_usd"))
        self._calm = _CALM.format(
            fired=dialect.elements("readings", "fired"), length=LENGTH_MONITOR
        )

    async def run(self, run: RunRecord, pk: int) -> LiveRun:
        connection = self._connection
        ((calls, spent),) = await connection.fetch(self._spent, pk=pk, since=self._since)
        row = await connection.row(_NEWEST, pk=pk)
        newest = codec.step_of(run.id, row) if row else None
        stuck = 0
        if newest is not None and newest.fired:
            calm = await connection.value(self._calm, pk=pk, newest=newest.step_index)
            stuck = newest.step_index - (-1 if calm is None else calm)
        guidance = await connection.row(_GUIDANCE, pk=pk)
        return LiveRun(
            run=run,
            newest=newest,
            stuck_steps=stuck,
            guidance=codec.injection_of(run.id, guidance) if guidance else None,
            spent_usd=spent,
            recent_calls=calls,
        )
