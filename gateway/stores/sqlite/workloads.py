"""Workloads in SQLite."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import apsw
import orjson

from gateway.stores.learning import DecidedRun, WorkloadRate, WorkloadRun
from gateway.stores.sqlite.database import Database

_NOTE = """
INSERT INTO workload_runs
    (run_id, tenant, workload, client, requested, model, at, choice, outcome)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, '') ON CONFLICT (run_id) DO NOTHING
"""
_OPEN = """
SELECT w.run_id, w.tenant, w.workload, w.model, w.client, w.requested, w.outcome,
    coalesce(r.outcome, ''), r.updated_at
FROM workload_runs AS w JOIN runs AS r ON r.id = w.run_id AND r.tenant = w.tenant
WHERE coalesce(r.outcome, '') <> w.outcome LIMIT ?
"""
_SETTLED = "UPDATE workload_runs SET outcome = ? WHERE run_id = ?"
_COUNT = """
INSERT INTO workload_models
    (tenant, workload, model, client, requested, solved, failed, updated_at)
VALUES (?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (tenant, workload, model) DO UPDATE SET
    solved = workload_models.solved + excluded.solved,
    failed = workload_models.failed + excluded.failed,
    updated_at = excluded.updated_at
"""
# A run that retention has removed keeps its count; its row has no further use.
_DROP = """
DELETE FROM workload_runs
WHERE at < ? AND NOT EXISTS (SELECT 1 FROM runs WHERE runs.id = workload_runs.run_id)
"""
_RATES = """
SELECT tenant, workload, client, requested, model, solved, failed FROM workload_models
WHERE solved > 0 OR failed > 0 ORDER BY updated_at DESC LIMIT ?
"""
_DECIDED = """
SELECT w.run_id, w.tenant, w.workload, w.client, w.requested, w.model, w.at, w.choice,
    r.outcome, r.cost_usd
FROM workload_runs AS w JOIN runs AS r ON r.id = w.run_id AND r.tenant = w.tenant
WHERE w.choice IS NOT NULL AND w.at >= ? AND (? IS NULL OR w.tenant = ?)
ORDER BY w.at DESC, w.run_id LIMIT ?
"""
_OUTCOMES = ("success", "failure")


class SQLiteWorkloadStore:
    """`WorkloadStore` over a Database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def note(self, runs: Sequence[WorkloadRun]) -> None:
        """See WorkloadStore."""
        rows = [
            (r.run_id, r.tenant, r.workload, r.client, r.requested, r.model, r.at, _json(r.choice))
            for r in runs
        ]

        def work(connection: apsw.Connection) -> None:
            connection.executemany(_NOTE, rows)

        if rows:
            await self._database.write(work)

    async def settle(self, *, limit: int = 1000) -> int:
        """See WorkloadStore."""
        # The search runs on a reader; what it found is searched again by the writer.
        if not await self._database.read(partial(_open_runs, 1)):
            return 0
        return await self._database.write(partial(_settle, limit))

    async def drop(self, *, before: float) -> None:
        """See WorkloadStore."""

        def work(connection: apsw.Connection) -> None:
            connection.execute(_DROP, (before,))

        await self._database.write(work)

    async def rates(self, *, limit: int = 10_000) -> list[WorkloadRate]:
        """See WorkloadStore."""

        def work(connection: apsw.Connection) -> list[WorkloadRate]:
            names = ("tenant", "workload", "client", "requested", "model", "solved", "failed")
            found = connection.execute(_RATES, (limit,))
            return [WorkloadRate(**dict(zip(names, row, strict=True))) for row in found]

        return await self._database.read(work)

    async def decided(
        self, *, tenant: str | None, since: float = 0.0, limit: int = 100_000
    ) -> list[DecidedRun]:
        """See WorkloadStore."""

        def work(connection: apsw.Connection) -> list[DecidedRun]:
            found = connection.execute(_DECIDED, (since, tenant, tenant, limit))
            return [_decided_of(row) for row in found]

        return await self._database.read(work)


def _open_runs(limit: int, connection: apsw.Connection) -> list[Any]:
    return connection.execute(_OPEN, (limit,)).fetchall()


def _settle(limit: int, connection: apsw.Connection) -> int:
    changed = _open_runs(limit, connection)
    for run_id, tenant, workload, model, client, requested, before, now, at in changed:
        solved, failed = (float(now == outcome) - float(before == outcome) for outcome in _OUTCOMES)
        key = (tenant, workload, model, client, requested)
        connection.execute(_COUNT, (*key, solved, failed, at))
        connection.execute(_SETTLED, (now, run_id))
    return len(changed)


def _json(choice: dict[str, Any] | None) -> str | None:
    return None if choice is None else orjson.dumps(choice).decode()


def _decided_of(row: Sequence[Any]) -> DecidedRun:
    run_id, tenant, workload, client, requested, model, at, choice, outcome, cost = row
    run = WorkloadRun(
        run_id=run_id,
        tenant=tenant,
        workload=workload,
        client=client,
        requested=requested,
        model=model,
        at=at,
        choice=orjson.loads(choice),
    )
    return DecidedRun(run=run, outcome=outcome if outcome in _OUTCOMES else None, cost_usd=cost)
