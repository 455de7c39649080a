"""Workloads in PostgreSQL."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import asyncpg
import orjson

from gateway.stores.learning import DecidedRun, WorkloadRate, WorkloadRun
from gateway.stores.postgres.database import Database
from gateway.stores.postgres.text import read_text, stored_text

_NOTE = """
INSERT INTO workload_runs
    (run_id, tenant, workload, client, requested, model, at, choice, outcome)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, '') ON CONFLICT (run_id) DO NOTHING
"""
# Rows that another gateway is counting at the moment are left to it.
_OPEN = """
SELECT w.run_id, w.tenant, w.workload, w.model, w.client, w.requested, w.outcome,
    coalesce(r.outcome, ''), r.updated_at
FROM workload_runs AS w JOIN runs AS r ON r.id = w.run_id AND r.tenant = w.tenant
WHERE coalesce(r.outcome, '') <> w.outcome LIMIT $1 FOR UPDATE OF w SKIP LOCKED
"""
_SETTLED = "UPDATE workload_runs SET outcome = $1 WHERE run_id = $2"
_COUNT = """
INSERT INTO workload_models
    (tenant, workload, model, client, requested, solved, failed, updated_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8)
ON CONFLICT (tenant, workload, model) DO UPDATE SET
    solved = workload_models.solved + excluded.solved,
    failed = workload_models.failed + excluded.failed,
    updated_at = excluded.updated_at
"""
_DROP = """
DELETE FROM workload_runs
WHERE at < $1 AND NOT EXISTS (SELECT 1 FROM runs WHERE runs.id = workload_runs.run_id)
"""
_RATES = """
SELECT tenant, workload, client, requested, model, solved, failed FROM workload_models
WHERE solved > 0 OR failed > 0 ORDER BY updated_at DESC LIMIT $1
"""
_DECIDED = """
SELECT w.run_id, w.tenant, w.workload, w.client, w.requested, w.model, w.at, w.choice,
    r.outcome, r.cost_usd
FROM workload_runs AS w JOIN runs AS r ON r.id = w.run_id AND r.tenant = w.tenant
WHERE w.choice IS NOT NULL AND w.at >= $1 AND ($2::text IS NULL OR w.tenant = $2)
ORDER BY w.at DESC, w.run_id LIMIT $3
"""
_OUTCOMES = ("success", "failure")


class PostgresWorkloadStore:
    """`WorkloadStore` over a Database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def note(self, runs: Sequence[WorkloadRun]) -> None:
        """See WorkloadStore."""
        rows = [_row(run) for run in runs]

        async def work(connection: asyncpg.Connection) -> None:
            await connection.executemany(_NOTE, rows)

        if rows:
            await self._database.transact(work)

    async def settle(self, *, limit: int = 1000) -> int:
        """See WorkloadStore."""

        async def work(connection: asyncpg.Connection) -> int:
            changed = [tuple(row) for row in await connection.fetch(_OPEN, limit)]
            # In one order, so that two gateways never wait for each other's counts.
            changed.sort(key=lambda row: row[1:4])
            for run_id, tenant, workload, model, client, requested, before, now, at in changed:
                solved, failed = (float(now == o) - float(before == o) for o in _OUTCOMES)
                key = (tenant, workload, model, client, requested)
                await connection.execute(_COUNT, *key, solved, failed, at)
                await connection.execute(_SETTLED, now, run_id)
            return len(changed)

        return await self._database.transact(work)

    async def drop(self, *, before: float) -> None:
        """See WorkloadStore."""
        await self._database.fetch(_DROP, before)

    async def rates(self, *, limit: int = 10_000) -> list[WorkloadRate]:
        """See WorkloadStore."""
        names = ("tenant", "workload", "client", "requested", "model", "solved", "failed")
        return [
            WorkloadRate(**dict(zip(names, map(read_text, row), strict=True)))
            for row in await self._database.fetch(_RATES, limit)
        ]

    async def decided(
        self, *, tenant: str | None, since: float = 0.0, limit: int = 100_000
    ) -> list[DecidedRun]:
        """See WorkloadStore."""
        named = None if tenant is None else stored_text(tenant)
        found = await self._database.fetch(_DECIDED, since, named, limit)
        return [_decided_of(row) for row in found]


def _row(run: WorkloadRun) -> tuple[Any, ...]:
    choice = None if run.choice is None else orjson.dumps(run.choice).decode()
    texts = (run.run_id, run.tenant, run.workload, run.client, run.requested, run.model)
    return (*map(stored_text, texts), run.at, choice)


def _decided_of(row: Sequence[Any]) -> DecidedRun:
    run_id, tenant, workload, client, requested, model, at, choice, outcome, cost = row
    run = WorkloadRun(
        run_id=read_text(run_id),
        tenant=read_text(tenant),
        workload=workload,
        client=read_text(client),
        requested=read_text(requested),
        model=read_text(model),
        at=at,
        choice=orjson.loads(choice),
    )
    return DecidedRun(run=run, outcome=outcome if outcome in _OUTCOMES else None, cost_usd=cost)
