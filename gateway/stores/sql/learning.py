"""Outcomes, decisions and jobs of learning; its lessons are in `lessons`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

import orjson

from gateway.stores import codec
from gateway.stores.learning import (
    Allowance,
    DecisionRow,
    Job,
    NearOutcome,
    OutcomeRow,
    Posterior,
    SettledDecision,
)
from gateway.stores.protocols import PATTERNS
from gateway.stores.sql.engine import (
    Connection,
    Row,
    assigned,
    columns,
    excluded,
    made,
    row_of,
    values,
)
from gateway.stores.sql.lessons import SQLLessons

_VERDICTS = 2
_OUTCOME = codec.names(OutcomeRow)
_POSTERIOR = codec.names(Posterior)
_JOB = codec.names(Job)
_DECISION = codec.DECISION_COLUMNS
_NEAR = ("recurred", "calls_to_success", "steps_left")
_NEWEST = """
SELECT verdict, score, comment FROM outcomes
WHERE run_id = :run_id AND source = :source AND metric = :metric ORDER BY pk DESC LIMIT 1
"""
_ADD_OUTCOME = f"INSERT INTO outcomes ({columns(_OUTCOME)}) VALUES ({values(_OUTCOME)})"
_OUTCOMES = f"""
SELECT {columns(_OUTCOME)} FROM outcomes
WHERE run_id = :run_id AND (CAST(:tenant AS TEXT) IS NULL OR tenant = :tenant) ORDER BY pk
"""
_DECISIONS = f"""
SELECT {columns(_DECISION)}, tenant, at, {columns(_NEAR)} FROM pattern_decisions
WHERE owner = :owner AND pattern_id = :pattern_id
    AND (CAST(:version AS BIGINT) IS NULL OR version = :version)
ORDER BY at, run_id, step_index LIMIT :limit
"""
_OPEN = f"""
SELECT {columns(_DECISION)} FROM pattern_decisions WHERE run_id = :run_id AND recurred IS NULL
ORDER BY step_index, pattern_id
"""
_SETTLE = f"""
UPDATE pattern_decisions SET {assigned(_NEAR)}
WHERE run_id = :run_id AND step_index = :step_index AND pattern_id = :pattern_id
    AND recurred IS NULL RETURNING TRUE
"""
_RATED = ("owner", "pattern_id", "version", *_POSTERIOR, "updated_at")
_PUT_POSTERIOR = f"""
INSERT INTO pattern_posteriors ({columns(_RATED)}) VALUES ({values(_RATED)})
ON CONFLICT (owner, pattern_id, version) DO UPDATE SET {excluded(_RATED[3:])}
"""
_ENQUEUE = f"""
INSERT INTO jobs ({columns(_JOB)}, claimed_at) VALUES ({values(_JOB)}, 0)
ON CONFLICT (kind, key) DO NOTHING RETURNING TRUE
"""
_GIVE_UP = """
UPDATE jobs SET state = 'failed', done_at = :now, error = 'abandoned too often'
WHERE kind = :kind AND state = 'waiting' AND lease_until <= :now AND attempts >= :most_attempts
"""
_CLAIM = f"""
UPDATE jobs SET attempts = attempts + 1, lease_until = :until, claimed_at = :now,
tokens = tokens + :reserve_tokens, cost_usd = cost_usd + :reserve_usd WHERE pk = (
    SELECT pk FROM jobs AS j WHERE kind = :kind AND state = 'waiting' AND lease_until <= :now
    AND NOT EXISTS (
        SELECT 1 FROM jobs AS o WHERE o.kind = :kind AND o.tenant = j.tenant
        AND o.state = 'waiting' AND o.lease_until > :now
    )
    AND NOT EXISTS (
        SELECT count(*) FROM jobs AS s WHERE s.kind = :kind AND s.tenant = j.tenant
        AND s.claimed_at >= :since
        HAVING sum(s.tokens) >= CAST(:tokens AS DOUBLE PRECISION) OR sum(s.cost_usd) >= :cost_usd
    )
    ORDER BY pk LIMIT 1
) RETURNING {columns(_JOB)}
"""
_HELD = "kind = :kind AND key = :key AND lease_until = :lease_until AND state = 'waiting'"
_FINISH = f"""
UPDATE jobs SET {assigned(("state", "done_at", "tokens", "cost_usd", "error"))}
WHERE {_HELD} RETURNING TRUE
"""
_GIVE_BACK = f"""
UPDATE jobs SET lease_until = :until, {assigned(("attempts", "tokens", "cost_usd"))}
WHERE {_HELD} RETURNING TRUE
"""
_OF_TENANT = "kind = :kind AND (CAST(:tenant AS TEXT) IS NULL OR tenant = :tenant)"
_SPENT = f"""
SELECT CAST(coalesce(sum(tokens), 0) AS BIGINT), coalesce(sum(cost_usd), 0.0) FROM jobs
WHERE {_OF_TENANT} AND claimed_at >= :since
"""
_JOBS = f"SELECT {columns(_JOB)} FROM jobs WHERE {_OF_TENANT} ORDER BY pk DESC LIMIT :limit"
_COUNT_JOBS = f"SELECT state, count(*) FROM jobs WHERE {_OF_TENANT} GROUP BY state"


class SQLLearningStore(SQLLessons):
    """`LearningStore` over an engine."""

    async def add_outcome(self, outcome: OutcomeRow) -> bool:
        row = row_of(outcome, _OUTCOME)

        async def work(connection: Connection) -> bool:
            # A verdict may be the run's first, so the run's id is locked and not a row.
            await connection.lock([outcome.run_id], _VERDICTS)
            newest = await connection.row(_NEWEST, **row)
            same = [outcome.verdict, outcome.score, outcome.comment]
            if newest is not None and list(newest) == same:
                return False
            await connection.fetch(_ADD_OUTCOME, **row)
            return True

        return await self._engine.transact(work)

    async def outcomes(self, tenant: str | None, run_id: str) -> list[OutcomeRow]:
        rows = await self._engine.fetch(_OUTCOMES, run_id=run_id, tenant=tenant)
        return [made(OutcomeRow, _OUTCOME, row) for row in rows]

    async def decisions(
        self, owner: str, pattern_id: str, version: int | None = None, *, limit: int = 10_000
    ) -> list[SettledDecision]:
        rows = await self._engine.fetch(
            _DECISIONS, owner=owner, pattern_id=pattern_id, version=version, limit=limit
        )
        return [_settled(row) for row in rows]

    async def open_decisions(self, run_id: str) -> list[DecisionRow]:
        return [_decision(row) for row in await self._engine.fetch(_OPEN, run_id=run_id)]

    async def settle(self, outcomes: Sequence[NearOutcome]) -> int:
        # In one order in every gateway, so that no two wait for each other.
        order = sorted(outcomes, key=lambda near: (near.run_id, near.step_index, near.pattern_id))

        async def work(connection: Connection) -> int:
            rows = [await connection.fetch(_SETTLE, **asdict(near)) for near in order]
            return sum(map(len, rows))

        return await self._engine.transact(work)

    async def put_posterior(
        self, owner: str, pattern_id: str, version: int, posterior: Posterior, at: float
    ) -> None:
        which = {"owner": owner, "pattern_id": pattern_id, "version": version, "updated_at": at}
        await self._engine.write(_PUT_POSTERIOR, **which, **row_of(posterior, _POSTERIOR))
        await self._engine.changed(PATTERNS)  # the share of occasions on which it is given

    async def enqueue(self, job: Job) -> bool:
        row = row_of(job, _JOB)
        row["payload"] = orjson.dumps(dict(job.payload)).decode()
        return bool(await self._engine.write(_ENQUEUE, **row))

    async def claim(
        self, kind: str, *, now: float, lease_s: float, most_attempts: int, allowance: Allowance
    ) -> Job | None:
        when = {"kind": kind, "now": now, "until": now + lease_s}

        async def work(connection: Connection) -> Row | None:
            # Whether a tenant may have one more depends on those of the others.
            await connection.take_turn("jobs")
            await connection.fetch(_GIVE_UP, **when, most_attempts=most_attempts)
            return await connection.row(_CLAIM, **when, **asdict(allowance))

        row = await self._engine.transact(work)
        return _job(row) if row is not None else None

    async def finish(self, job: Job, *, now: float, error: str = "") -> bool:
        result = {"state": "failed" if error else "done", "done_at": now, "error": error}
        return bool(await self._engine.write(_FINISH, **(row_of(job, _JOB) | result)))

    async def give_back(self, job: Job, until: float) -> bool:
        return bool(await self._engine.write(_GIVE_BACK, **row_of(job, _JOB), until=until))

    async def spent(self, kind: str, tenant: str | None, since: float) -> tuple[int, float]:
        ((tokens, usd),) = await self._engine.fetch(_SPENT, kind=kind, tenant=tenant, since=since)
        return int(tokens), float(usd)

    async def jobs(self, kind: str, tenant: str | None = None, *, limit: int = 100) -> list[Job]:
        rows = await self._engine.fetch(_JOBS, kind=kind, tenant=tenant, limit=limit)
        return [_job(row) for row in rows]

    async def count_jobs(self, kind: str, tenant: str | None = None) -> dict[str, int]:
        rows = await self._engine.fetch(_COUNT_JOBS, kind=kind, tenant=tenant)
        return {state: int(number) for state, number in rows}


def _job(row: Row) -> Job:
    found = dict(zip(_JOB, row, strict=True))
    found["payload"] = orjson.loads(found["payload"])
    return Job(**found)


def _decision(row: Row) -> DecisionRow:
    found = dict(zip(_DECISION, row, strict=True))
    found["given"] = bool(found["given"])
    return DecisionRow(**found)


def _settled(row: Row) -> SettledDecision:
    tenant, at, recurred, calls, left = row[len(_DECISION) :]
    return SettledDecision(
        decision=_decision(row[: len(_DECISION)]),
        tenant=tenant,
        at=at,
        recurred=None if recurred is None else bool(recurred),
        calls_to_success=calls,
        steps_left=left,
    )
