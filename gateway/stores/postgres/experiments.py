"""The runs of an experiment in PostgreSQL."""

# ruff: noqa: S608 - statements are put together from names of this package; values are bound

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from gateway.stores import codec
from gateway.stores.postgres import filters
from gateway.stores.postgres.database import Database
from gateway.stores.postgres.text import Arguments, read_json, read_text
from gateway.stores.queries import RunFilter
from gateway.stores.totals import AT_ONCE, COLUMNS, ExperimentRun, experiment_run_of


async def experiment_runs(
    database: Database, experiment: str, tenant: str | None
) -> list[ExperimentRun]:
    """See RunStore."""
    wanted = RunFilter(tenant=tenant, experiment=experiment)
    found: list[ExperimentRun] = []
    while True:
        values = Arguments()
        sql = _after(found[-1] if found else None, wanted, values)
        rows = await database.fetch(sql, *values)
        found += await asyncio.to_thread(_made, rows)
        if len(rows) < AT_ONCE:
            return found


def _after(last: ExperimentRun | None, runs: RunFilter, values: Arguments) -> str:
    """The next runs after `last`, oldest first."""
    condition = filters.where(runs, values)
    if last is not None:
        place = f"({values.add(last.started_at)}, {values.add(last.id)})"
        condition += f" AND (r.started_at, r.id) > {place}"
    return (
        f"SELECT {COLUMNS} FROM {codec.RUNS} WHERE {condition} "
        f"ORDER BY r.started_at, r.id LIMIT {AT_ONCE}"
    )


def _made(rows: Sequence[Sequence[Any]]) -> list[ExperimentRun]:
    return [
        experiment_run_of([*map(read_text, columns), read_json(counts)])
        for *columns, counts in rows
    ]
