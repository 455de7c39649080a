"""Outcomes, decisions and jobs of learning in SQLite; its lessons are in `lessons`."""

# ruff: noqa: S608 - statements are put together from names of this package; values are bound

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

import apsw
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
from gateway.stores.sqlite.lessons import SQLiteLessons

_OUTCOME = codec.names(OutcomeRow)
_POSTERIOR = codec.names(Posterior)
_JOB = codec.names(Job)
_DECISION = ", ".join(codec.DECISION_COLUMNS)
_NEAR = ("recurred", "calls_to_success", "steps_left")
_HELD = "kind = ? AND key = ? AND lease_until = ? AND state = 'waiting'"
_OF_TENANT = "kind = ? AND (? IS NULL OR tenant = ?)"
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
        HAVING sum(s.tokens) >= :tokens OR sum(s.cost_usd) >= :cost_usd
    )
    ORDER BY pk LIMIT 1
) RETURNING {", ".join(_JOB)}
"""


def _marks(names: Sequence[str]) -> str:
    return ", ".join("?" * len(names))


class SQLiteLearningStore(SQLiteLessons):
    """`LearningStore` over a Database."""

    async def add_outcome(self, outcome: OutcomeRow) -> bool:
        """See LearningStore."""
        return await self._database.write(partial(_add_outcome, outcome))

    async def outcomes(self, tenant: str | None, run_id: str) -> list[OutcomeRow]:
        """See LearningStore."""
        sql = (
            f"SELECT {', '.join(_OUTCOME)} FROM outcomes "
            "WHERE run_id = ? AND (? IS NULL OR tenant = ?) ORDER BY pk"
        )
        rows = await self._rows(sql, run_id, tenant, tenant)
        return [OutcomeRow(**dict(zip(_OUTCOME, row, strict=True))) for row in rows]

    async def decisions(
        self, owner: str, pattern_id: str, version: int | None = None, *, limit: int = 10_000
    ) -> list[SettledDecision]:
        """See LearningStore."""
        sql = (
            f"SELECT {_DECISION}, tenant, at, {', '.join(_NEAR)} FROM pattern_decisions "
            "WHERE owner = ? AND pattern_id = ? AND (? IS NULL OR version = ?) "
            "ORDER BY at, run_id, step_index LIMIT ?"
        )
        rows = await self._rows(sql, owner, pattern_id, version, version, limit)
        return [_settled(row) for row in rows]

    async def open_decisions(self, run_id: str) -> list[DecisionRow]:
        """See LearningStore."""
        sql = (
            f"SELECT {_DECISION} FROM pattern_decisions WHERE run_id = ? AND recurred IS NULL "
            "ORDER BY step_index, pattern_id"
        )
        return [_decision(row) for row in await self._rows(sql, run_id)]

    async def settle(self, outcomes: Sequence[NearOutcome]) -> int:
        """See LearningStore."""

        def work(connection: apsw.Connection) -> int:
            known = 0
            for near in outcomes:
                connection.execute(
                    "UPDATE pattern_decisions SET recurred = ?, calls_to_success = ?, "
                    "steps_left = ? WHERE run_id = ? AND step_index = ? AND pattern_id = ? "
                    "AND recurred IS NULL",
                    (
                        *(near.recurred, near.calls_to_success, near.steps_left),
                        *(near.run_id, near.step_index, near.pattern_id),
                    ),
                )
                known += connection.changes()
            return known

        return await self._database.write(work)

    async def put_posterior(
        self, owner: str, pattern_id: str, version: int, posterior: Posterior, at: float
    ) -> None:
        """See LearningStore."""
        values = [getattr(posterior, name) for name in _POSTERIOR]
        names = ("owner", "pattern_id", "version", *_POSTERIOR, "updated_at")
        changed = ", ".join(f"{name} = excluded.{name}" for name in names[3:])
        await self._run(
            f"INSERT INTO pattern_posteriors ({', '.join(names)}) VALUES ({_marks(names)}) "
            f"ON CONFLICT (owner, pattern_id, version) DO UPDATE SET {changed}",
            *(owner, pattern_id, version, *values, at),
        )

    async def enqueue(self, job: Job) -> bool:
        """See LearningStore."""
        return await self._run(
            f"INSERT INTO jobs ({', '.join(_JOB)}, claimed_at) VALUES ({_marks(_JOB)}, 0) "
            "ON CONFLICT (kind, key) DO NOTHING",
            *_job_row(job),
        )

    async def claim(
        self, kind: str, *, now: float, lease_s: float, most_attempts: int, allowance: Allowance
    ) -> Job | None:
        """See LearningStore."""
        work = partial(_claim, kind, now, lease_s, most_attempts, allowance)
        return await self._database.write(work)

    async def finish(self, job: Job, *, now: float, error: str = "") -> bool:
        """See LearningStore."""
        state = "failed" if error else "done"
        return await self._run(
            "UPDATE jobs SET state = ?, done_at = ?, tokens = ?, cost_usd = ?, error = ? "
            f"WHERE {_HELD}",
            *(state, now, job.tokens, job.cost_usd, error, job.kind, job.key, job.lease_until),
        )

    async def give_back(self, job: Job, until: float) -> bool:
        """See LearningStore."""
        return await self._run(
            "UPDATE jobs SET lease_until = ?, attempts = ?, tokens = ?, cost_usd = ? "
            f"WHERE {_HELD}",
            *(until, job.attempts, job.tokens, job.cost_usd, job.kind, job.key, job.lease_until),
        )

    async def spent(self, kind: str, tenant: str | None, since: float) -> tuple[int, float]:
        """See LearningStore."""
        rows = await self._rows(
            "SELECT coalesce(sum(tokens), 0), coalesce(sum(cost_usd), 0.0) FROM jobs "
            f"WHERE {_OF_TENANT} AND claimed_at >= ?",
            *(kind, tenant, tenant, since),
        )
        return int(rows[0][0]), float(rows[0][1])

    async def jobs(self, kind: str, tenant: str | None = None, *, limit: int = 100) -> list[Job]:
        """See LearningStore."""
        sql = f"SELECT {', '.join(_JOB)} FROM jobs WHERE {_OF_TENANT} ORDER BY pk DESC LIMIT ?"
        return [_job(row) for row in await self._rows(sql, kind, tenant, tenant, limit)]

    async def count_jobs(self, kind: str, tenant: str | None = None) -> dict[str, int]:
        """See LearningStore."""
        sql = f"SELECT state, count(*) FROM jobs WHERE {_OF_TENANT} GROUP BY state"
        return dict(await self._rows(sql, kind, tenant, tenant))


def _add_outcome(outcome: OutcomeRow, connection: apsw.Connection) -> bool:
    newest: Any = connection.execute(
        "SELECT verdict, score, comment FROM outcomes WHERE run_id = ? AND source = ? "
        "AND metric = ? ORDER BY pk DESC LIMIT 1",
        (outcome.run_id, outcome.source, outcome.metric),
    ).fetchone()
    if newest == (outcome.verdict, outcome.score, outcome.comment):
        return False
    connection.execute(
        f"INSERT INTO outcomes ({', '.join(_OUTCOME)}) VALUES ({_marks(_OUTCOME)})",
        tuple(getattr(outcome, name) for name in _OUTCOME),
    )
    return True


def _claim(
    kind: str,
    now: float,
    lease_s: float,
    most_attempts: int,
    allowance: Allowance,
    connection: apsw.Connection,
) -> Job | None:
    connection.execute(
        "UPDATE jobs SET state = 'failed', done_at = ?, error = 'abandoned too often' "
        "WHERE kind = ? AND state = 'waiting' AND lease_until <= ? AND attempts >= ?",
        (now, kind, now, most_attempts),
    )
    values = {"kind": kind, "now": now, "until": now + lease_s, **asdict(allowance)}
    rows: list[Any] = connection.execute(_CLAIM, values).fetchall()
    return _job(rows[0]) if rows else None


def _job_row(job: Job) -> tuple[Any, ...]:
    values = {name: getattr(job, name) for name in _JOB}
    values["payload"] = orjson.dumps(dict(job.payload)).decode()
    return tuple(values.values())


def _job(row: Sequence[Any]) -> Job:
    values = dict(zip(_JOB, row, strict=True))
    values["payload"] = orjson.loads(values["payload"])
    return Job(**values)


def _decision(row: Sequence[Any]) -> DecisionRow:
    values = dict(zip(codec.DECISION_COLUMNS, row, strict=True))
    values["given"] = bool(values["given"])
    return DecisionRow(**values)


def _settled(row: Sequence[Any]) -> SettledDecision:
    width = len(codec.DECISION_COLUMNS)
    tenant, at, recurred, calls, left = row[width:]
    return SettledDecision(
        decision=_decision(row[:width]),
        tenant=tenant,
        at=at,
        recurred=None if recurred is None else bool(recurred),
        calls_to_success=calls,
        steps_left=left,
    )
