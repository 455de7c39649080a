"""Runs of workloads, and how often each model solved one."""

from collections.abc import Sequence

import orjson

from gateway.steering.learned_routing import HALF_LIFE
from gateway.stores.codec import names
from gateway.stores.learning import WorkloadRate, WorkloadRun
from gateway.stores.sql.engine import Connection, Engine, columns, insert, record_of, row_of
from gateway.values import by_name

_RUN = names(WorkloadRun)
_NOTE = f"""
{insert("workload_runs", (*_RUN, "outcome"))}
ON CONFLICT (run_id) DO NOTHING
"""
_OPEN = """
SELECT w.run_id, w.tenant, w.workload, w.client, w.requested, w.model, w.outcome,
    coalesce(r.outcome, ''), r.updated_at
FROM workload_runs AS w JOIN runs AS r ON r.id = w.run_id AND r.tenant = w.tenant
WHERE coalesce(r.outcome, '') <> w.outcome LIMIT :limit
"""
_SETTLED = "UPDATE workload_runs SET outcome = :outcome WHERE run_id = :run_id"
_RATE = names(WorkloadRate)
_COUNTED = (*_RATE, "updated_at")
_COUNT = f"""
{insert("workload_models", _COUNTED)}
ON CONFLICT (tenant, workload, model) DO UPDATE SET
    solved = workload_models.solved + excluded.solved,
    failed = workload_models.failed + excluded.failed,
    recent_solved = workload_models.recent_solved + excluded.recent_solved,
    recent_failed = workload_models.recent_failed + excluded.recent_failed,
    updated_at = excluded.updated_at
"""
_FADE = f"""
UPDATE workload_models SET
    recent_solved = recent_solved * {0.5 ** (1.0 / HALF_LIFE)!r},
    recent_failed = recent_failed * {0.5 ** (1.0 / HALF_LIFE)!r}
WHERE tenant = :tenant AND workload = :workload
"""
# A run that retention has removed keeps its count; its row has no further use.
_DROP = """
DELETE FROM workload_runs
WHERE at < :before AND NOT EXISTS (SELECT 1 FROM runs WHERE runs.id = workload_runs.run_id)
"""
_RATES = f"""
SELECT {columns(_RATE)} FROM workload_models
WHERE (solved > 0 OR failed > 0) AND (CAST(:tenant AS TEXT) IS NULL OR tenant = :tenant)
ORDER BY updated_at DESC LIMIT :limit
"""
_WORKLOAD = "SELECT workload FROM workload_runs WHERE run_id = :run_id"
_OUTCOMES = ("success", "failure")


class WorkloadStore:
    """Runs by workload, and the counts of their outcomes, which a call of a client never changes.
    Every method may raise StoreError."""

    def __init__(self, engine: Engine):
        self._engine = engine
        # Rows that another gateway is counting at the moment are left to it.
        self._claim = f"{_OPEN} {engine.forms.locked('w')}"

    async def note(self, runs: Sequence[WorkloadRun]) -> None:
        """Keep where runs began; of a run that is known already nothing changes."""
        rows = [row_of(run, _RUN) | {"outcome": ""} for run in runs]
        for row in rows:
            if row["choice"] is not None:
                row["choice"] = orjson.dumps(row["choice"]).decode()
        if rows:
            await self._engine.transact(lambda connection: connection.execute_many(_NOTE, rows))

    async def settle(self, *, limit: int = 1000) -> int:
        """Count the outcomes that runs have by now; returns how many were new or changed. Each run
        counts once, with its latest outcome. At most `limit` runs; call it until it returns
        less."""

        async def work(connection: Connection) -> int:
            changed = await connection.fetch(self._claim, limit=limit)
            # In one order, so that two gateways never wait for each other's counts.
            for row in sorted(changed, key=lambda row: (*row[1:3], row[-1])):
                run_id, *key, before, now, at = row
                change = [float(now == o) - float(before == o) for o in _OUTCOMES]
                counted = by_name(_COUNTED, (*key, *change, *change, at))
                if sum(change) > 0:
                    await connection.fetch(_FADE, tenant=key[0], workload=key[1])
                await connection.fetch(_COUNT, **counted)
                await connection.fetch(_SETTLED, outcome=now, run_id=run_id)
            return len(changed)

        # What a read finds is searched again by the one that writes, and may have to wait.
        if not await self._engine.fetch(_OPEN, limit=1):
            return 0
        return await self._engine.transact(work)

    async def drop(self, *, before: float) -> None:
        """Remove the runs that began before a time and are no longer in the run log; counts
        stay."""
        await self._engine.write(_DROP, before=before)

    async def rates(self, *, tenant: str | None = None, limit: int = 10_000) -> list[WorkloadRate]:
        """The counts of a tenant or, with None, of all; those that changed last first."""
        make = record_of(WorkloadRate, _RATE)
        return await self._engine.made(make, _RATES, tenant=tenant, limit=limit)

    async def workload_of(self, run_id: str) -> str:
        """The workload of a run; empty for one that was not noted."""
        rows = await self._engine.fetch(_WORKLOAD, run_id=run_id)
        return rows[0][0] if rows else ""
