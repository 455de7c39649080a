"""The runs of an experiment in SQLite."""

# ruff: noqa: S608 - statements are put together from names of this package; values are bound

from __future__ import annotations

from functools import partial

import apsw

from gateway.stores import codec
from gateway.stores.queries import RunFilter
from gateway.stores.sqlite import filters
from gateway.stores.sqlite.database import Database
from gateway.stores.totals import AT_ONCE, COLUMNS, ExperimentRun, experiment_run_of


async def experiment_runs(
    database: Database, experiment: str, tenant: str | None
) -> list[ExperimentRun]:
    """See RunStore."""
    wanted = RunFilter(tenant=tenant, experiment=experiment)
    found: list[ExperimentRun] = []
    while True:
        last = found[-1] if found else None
        more = await database.read(partial(_after, last, wanted))
        found += more
        if len(more) < AT_ONCE:
            return found


def _after(
    last: ExperimentRun | None, runs: RunFilter, connection: apsw.Connection
) -> list[ExperimentRun]:
    """The next runs after `last`, oldest first."""
    condition, values = filters.where(runs)
    if last is not None:
        condition += " AND (r.started_at, r.id) > (?, ?)"
        values.extend((last.started_at, last.id))
    sql = (
        f"SELECT {COLUMNS} FROM {codec.RUNS} WHERE {condition} ORDER BY r.started_at, r.id LIMIT ?"
    )
    return [experiment_run_of(row) for row in connection.execute(sql, (*values, AT_ONCE))]
