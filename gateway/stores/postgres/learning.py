"""Outcomes, decisions and jobs of learning in PostgreSQL; its lessons are in `lessons`."""

# ruff: noqa: S608 - statements are put together from names of this package; values are bound

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import asyncpg
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
from gateway.stores.postgres.lessons import PostgresLessons, optional, texts
from gateway.stores.postgres.text import read_text, stored_text

_OUTCOME = codec.names(OutcomeRow)
_POSTERIOR = codec.names(Posterior)
_JOB = codec.names(Job)
_DECISION = ", ".join(codec.DECISION_COLUMNS)


def _marks(count: int) -> str:
    return ", ".join(f"${number}" for number in range(1, count + 1))


# A verdict may be the run's first, so the run's id is locked and not a row.
_VERDICTS_TURN = "SELECT pg_advisory_xact_lock(hashtextextended($1, 2))"
_NEWEST = """
SELECT verdict, score, comment FROM outcomes WHERE run_id = $1 AND source = $2 AND metric = $3
ORDER BY pk DESC LIMIT 1
"""
_ADD_OUTCOME = f"INSERT INTO outcomes ({', '.join(_OUTCOME)}) VALUES ({_marks(len(_OUTCOME))})"
_OUTCOMES = f"""
SELECT {", ".join(_OUTCOME)} FROM outcomes
WHERE run_id = $1 AND ($2::text IS NULL OR tenant = $2) ORDER BY pk
"""
_DECISIONS = f"""
SELECT {_DECISION}, tenant, at, recurred, calls_to_success, steps_left FROM pattern_decisions
WHERE owner = $1 AND pattern_id = $2 AND ($3::int8 IS NULL OR version = $3)
ORDER BY at, run_id, step_index LIMIT $4
"""
_OPEN = f"""
SELECT {_DECISION} FROM pattern_decisions WHERE run_id = $1 AND recurred IS NULL
ORDER BY step_index, pattern_id
"""
_SETTLE = """
UPDATE pattern_decisions SET recurred = $1, calls_to_success = $2, steps_left = $3
WHERE run_id = $4 AND step_index = $5 AND pattern_id = $6 AND recurred IS NULL RETURNING TRUE
"""
_RATED = ("owner", "pattern_id", "version", *_POSTERIOR, "updated_at")
_PUT_POSTERIOR = f"""
INSERT INTO pattern_posteriors ({", ".join(_RATED)}) VALUES ({_marks(len(_RATED))})
ON CONFLICT (owner, pattern_id, version) DO UPDATE
SET {", ".join(f"{name} = excluded.{name}" for name in _RATED[3:])}
"""
_ENQUEUE = f"""
INSERT INTO jobs ({", ".join(_JOB)}, claimed_at) VALUES ({_marks(len(_JOB))}, 0)
ON CONFLICT (kind, key) DO NOTHING RETURNING TRUE
"""
_GIVE_UP = """
UPDATE jobs SET state = 'failed', done_at = $2, error = 'abandoned too often'
WHERE kind = $1 AND state = 'waiting' AND lease_until <= $2 AND attempts >= $3
"""
# Claims take their turns: whether a tenant may have one more depends on those of the others.
_CLAIMS_TURN = "LOCK TABLE jobs IN SHARE ROW EXCLUSIVE MODE"
_CLAIM = f"""
UPDATE jobs SET attempts = attempts + 1, lease_until = $3, claimed_at = $2,
tokens = tokens + $7, cost_usd = cost_usd + $8 WHERE pk = (
    SELECT pk FROM jobs AS j WHERE kind = $1 AND state = 'waiting' AND lease_until <= $2
    AND NOT EXISTS (
        SELECT FROM jobs AS o WHERE o.kind = $1 AND o.tenant = j.tenant
        AND o.state = 'waiting' AND o.lease_until > $2
    )
    AND NOT EXISTS (
        SELECT FROM jobs AS s WHERE s.kind = $1 AND s.tenant = j.tenant AND s.claimed_at >= $4
        HAVING sum(s.tokens) >= $5::double precision OR sum(s.cost_usd) >= $6
    )
    ORDER BY pk LIMIT 1
) RETURNING {", ".join(_JOB)}
"""
_FINISH = """
UPDATE jobs SET state = $1, done_at = $2, tokens = $3, cost_usd = $4, error = $5
WHERE kind = $6 AND key = $7 AND lease_until = $8 AND state = 'waiting' RETURNING TRUE
"""
_GIVE_BACK = """
UPDATE jobs SET lease_until = $1, attempts = $2, tokens = $3, cost_usd = $4
WHERE kind = $5 AND key = $6 AND lease_until = $7 AND state = 'waiting' RETURNING TRUE
"""
_OF_TENANT = "kind = $1 AND ($2::text IS NULL OR tenant = $2)"
_SPENT = f"""
SELECT coalesce(sum(tokens), 0)::bigint, coalesce(sum(cost_usd), 0) FROM jobs
WHERE {_OF_TENANT} AND claimed_at >= $3
"""
_JOBS = f"SELECT {', '.join(_JOB)} FROM jobs WHERE {_OF_TENANT} ORDER BY pk DESC LIMIT $3"
_COUNT_JOBS = f"SELECT state, count(*) FROM jobs WHERE {_OF_TENANT} GROUP BY state"


class PostgresLearningStore(PostgresLessons):
    """`LearningStore` over a Database."""

    async def add_outcome(self, outcome: OutcomeRow) -> bool:
        """See LearningStore."""
        row = texts(getattr(outcome, name) for name in _OUTCOME)
        values = dict(zip(_OUTCOME, row, strict=True))
        place = [values[name] for name in ("run_id", "source", "metric")]

        async def work(connection: asyncpg.Connection) -> bool:
            await connection.execute(_VERDICTS_TURN, values["run_id"])
            newest = await connection.fetchrow(_NEWEST, *place)
            same = (values["verdict"], outcome.score, values["comment"])
            if newest is not None and tuple(newest) == same:
                return False
            await connection.execute(_ADD_OUTCOME, *row)
            return True

        return await self._database.transact(work)

    async def outcomes(self, tenant: str | None, run_id: str) -> list[OutcomeRow]:
        """See LearningStore."""
        rows = await self._database.fetch(_OUTCOMES, stored_text(run_id), optional(tenant))
        return [OutcomeRow(**dict(zip(_OUTCOME, map(read_text, row), strict=True))) for row in rows]

    async def decisions(
        self, owner: str, pattern_id: str, version: int | None = None, *, limit: int = 10_000
    ) -> list[SettledDecision]:
        """See LearningStore."""
        place = (stored_text(owner), stored_text(pattern_id), version, limit)
        return [_settled(row) for row in await self._database.fetch(_DECISIONS, *place)]

    async def open_decisions(self, run_id: str) -> list[DecisionRow]:
        """See LearningStore."""
        return [_decision(row) for row in await self._database.fetch(_OPEN, stored_text(run_id))]

    async def settle(self, outcomes: Sequence[NearOutcome]) -> int:
        """See LearningStore."""
        order = sorted(outcomes, key=lambda near: (near.run_id, near.step_index, near.pattern_id))

        async def work(connection: asyncpg.Connection) -> int:
            known = 0
            for near in order:
                which = (stored_text(near.run_id), near.step_index, stored_text(near.pattern_id))
                what = (near.recurred, near.calls_to_success, near.steps_left)
                known += bool(await connection.fetchval(_SETTLE, *what, *which))
            return known

        return await self._database.transact(work)

    async def put_posterior(
        self, owner: str, pattern_id: str, version: int, posterior: Posterior, at: float
    ) -> None:
        """See LearningStore."""
        values = [getattr(posterior, name) for name in _POSTERIOR]
        names = (stored_text(owner), stored_text(pattern_id))
        await self._database.fetch(_PUT_POSTERIOR, *names, version, *values, at)
        await self._told(1)  # the share of occasions on which it is given

    async def enqueue(self, job: Job) -> bool:
        """See LearningStore."""
        values = {name: getattr(job, name) for name in _JOB}
        values["payload"] = orjson.dumps(dict(job.payload)).decode()
        return bool(await self._database.fetch(_ENQUEUE, *texts(values.values())))

    async def claim(
        self, kind: str, *, now: float, lease_s: float, most_attempts: int, allowance: Allowance
    ) -> Job | None:
        """See LearningStore."""
        limits = (allowance.since, allowance.tokens, allowance.cost_usd)
        reserve = (allowance.reserve_tokens, allowance.reserve_usd)

        async def work(connection: asyncpg.Connection) -> Any:
            await connection.execute(_CLAIMS_TURN)
            await connection.execute(_GIVE_UP, kind, now, most_attempts)
            return await connection.fetchrow(_CLAIM, kind, now, now + lease_s, *limits, *reserve)

        row = await self._database.transact(work)
        return _job(row) if row is not None else None

    async def finish(self, job: Job, *, now: float, error: str = "") -> bool:
        """See LearningStore."""
        state = "failed" if error else "done"
        result = (state, now, job.tokens, job.cost_usd, stored_text(error))
        held = (job.kind, stored_text(job.key), job.lease_until)
        return bool(await self._database.fetch(_FINISH, *result, *held))

    async def give_back(self, job: Job, until: float) -> bool:
        """See LearningStore."""
        known = (until, job.attempts, job.tokens, job.cost_usd)
        held = (job.kind, stored_text(job.key), job.lease_until)
        return bool(await self._database.fetch(_GIVE_BACK, *known, *held))

    async def spent(self, kind: str, tenant: str | None, since: float) -> tuple[int, float]:
        """See LearningStore."""
        ((tokens, usd),) = await self._database.fetch(_SPENT, kind, optional(tenant), since)
        return int(tokens), float(usd)

    async def jobs(self, kind: str, tenant: str | None = None, *, limit: int = 100) -> list[Job]:
        """See LearningStore."""
        return [
            _job(row) for row in await self._database.fetch(_JOBS, kind, optional(tenant), limit)
        ]

    async def count_jobs(self, kind: str, tenant: str | None = None) -> dict[str, int]:
        """See LearningStore."""
        rows = await self._database.fetch(_COUNT_JOBS, kind, optional(tenant))
        return {read_text(state): int(number) for state, number in rows}


def _job(row: Sequence[Any]) -> Job:
    values = dict(zip(_JOB, map(read_text, row), strict=True))
    values["payload"] = orjson.loads(values["payload"])
    return Job(**values)


def _decision(row: Sequence[Any]) -> DecisionRow:
    return DecisionRow(**dict(zip(codec.DECISION_COLUMNS, map(read_text, row), strict=True)))


def _settled(row: Sequence[Any]) -> SettledDecision:
    width = len(codec.DECISION_COLUMNS)
    tenant, at, recurred, calls, left = row[width:]
    return SettledDecision(
        decision=_decision(row[:width]),
        tenant=read_text(tenant),
        at=at,
        recurred=recurred,
        calls_to_success=calls,
        steps_left=left,
    )
