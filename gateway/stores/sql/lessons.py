"""Lessons and their evidence: rows of the patterns table that have an origin."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gateway.steering.guidance.pattern import Pattern, Status, Tier
from gateway.stores import codec
from gateway.stores.learning import EvidenceRow, Learned, LessonFilter, StoredLesson
from gateway.stores.protocols import PATTERNS
from gateway.stores.sql import pattern_rows as rows
from gateway.stores.sql.engine import Connection, Engine, columns, conditions, made, row_of, values

_EVIDENCE = codec.names(EvidenceRow)
_INSERT_EVIDENCE = f"""
INSERT INTO pattern_evidence ({columns(_EVIDENCE)}) VALUES ({values(_EVIDENCE)})
ON CONFLICT DO NOTHING RETURNING TRUE
"""
_KNOWN = """
SELECT pk FROM patterns WHERE pattern_id = :pattern_id AND tenant IN ('', :tenant)
AND origin <> '' ORDER BY tenant LIMIT 1
"""
_CONFIRM = """
UPDATE patterns SET last_confirmed_at = :at WHERE pk = :pk AND last_confirmed_at < :at
"""
_LESSON = f"""
{rows.SELECT_LESSONS} AND p.pattern_id = :pattern_id
    AND (CAST(:tenant AS TEXT) IS NULL OR p.tenant IN ('', :tenant))
ORDER BY p.tenant DESC LIMIT 1
"""
_OWN = "WHERE tenant = :tenant AND pattern_id = :pattern_id"
_MOVE = f"""
UPDATE patterns SET status = :status, reason = :reason, updated_at = :at {_OWN}
AND origin <> '' AND status <> :status RETURNING TRUE
"""
_PROLONG = f"UPDATE patterns SET expires_at = :expires_at {_OWN} AND origin <> ''"
_IS_SHARED = "SELECT TRUE FROM patterns WHERE tenant = '' AND pattern_id = :pattern_id"
_SHARE = f"""
UPDATE patterns SET tenant = '', reason = 'shared by the operator', updated_at = :at {_OWN}
AND tier = 'e2' AND origin <> '' RETURNING TRUE
"""
_HELD = "SELECT count(*) FROM patterns WHERE tenant = :tenant AND tier = :tier AND origin <> ''"
_TRIM = """
DELETE FROM patterns WHERE pk IN (
    SELECT pk FROM patterns WHERE tenant = :tenant AND tier = :tier AND origin <> ''
    AND status = 'candidate' ORDER BY last_confirmed_at, pk LIMIT :extra
) RETURNING pattern_id
"""
_SUPPORT = f"""
SELECT {columns(_EVIDENCE)} FROM pattern_evidence WHERE pattern_id = :pattern_id
AND (CAST(:tenant AS TEXT) = '' OR tenant = :tenant)
ORDER BY at DESC, run_id, step_index LIMIT :limit
"""
_OF_RUN = "run_id = :run_id AND (CAST(:tenant AS TEXT) IS NULL OR tenant = :tenant)"
_OWNERS = "SELECT DISTINCT tenant FROM pattern_evidence WHERE pattern_id = :pattern_id"
_REMOVE = f"DELETE FROM patterns {_OWN} AND origin <> '' AND origin <> 'written' RETURNING TRUE"
_TABLE = "patterns"
"""Changes of lessons take their turns with each other and with those of patterns."""


class SQLLessons:
    """The part of `LearningStore` that is about lessons."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        run = engine.dialect.member("payload", "run")
        self._forget_jobs = f"""
            DELETE FROM jobs WHERE {run} = :run_id
            AND (CAST(:tenant AS TEXT) IS NULL OR tenant = :tenant)
        """

    async def learn(self, entries: Sequence[tuple[Pattern, Sequence[EvidenceRow]]]) -> Learned:
        if any(pattern.lesson is None or not pattern.pattern_id for pattern, _ in entries):
            raise ValueError("pattern: a lesson has an id, and says what it was learned from")

        async def work(connection: Connection) -> Learned:
            await connection.take_turn(_TABLE)
            kept = [await _learn(pattern, evidence, connection) for pattern, evidence in entries]
            return Learned(lessons=sum(new for new, _ in kept), evidence=sum(n for _, n in kept))

        learned = await self._engine.transact(work)
        await self._report(learned.lessons)
        return learned

    async def lessons(self, wanted: LessonFilter, *, limit: int = 1000) -> list[StoredLesson]:
        bound: dict[str, Any] = {"limit": limit}
        sql = f"""
            {rows.SELECT_LESSONS} AND {self._where(wanted, bound)}
            ORDER BY p.updated_at DESC, p.pk DESC LIMIT :limit
        """
        return [rows.stored_lesson(row) for row in await self._engine.fetch(sql, **bound)]

    async def lesson(self, tenant: str | None, pattern_id: str) -> StoredLesson | None:
        found = await self._engine.fetch(_LESSON, pattern_id=pattern_id, tenant=tenant)
        return rows.stored_lesson(found[0]) if found else None

    async def move(
        self, tenant: str, pattern_id: str, status: Status, *, reason: str, at: float
    ) -> bool:
        which = {"tenant": tenant, "pattern_id": pattern_id}
        moved = await self._engine.write(_MOVE, **which, status=status.value, reason=reason, at=at)
        await self._report(len(moved))
        return bool(moved)

    async def prolong(self, tenant: str, pattern_id: str, expires_at: float) -> None:
        which = {"tenant": tenant, "pattern_id": pattern_id}
        await self._engine.write(_PROLONG, **which, expires_at=expires_at)

    async def share(self, tenant: str, pattern_id: str, at: float) -> bool:
        which = {"tenant": tenant, "pattern_id": pattern_id}

        async def work(connection: Connection) -> bool:
            await connection.take_turn(_TABLE)
            if not tenant or await connection.row(_IS_SHARED, **which):
                return False
            if not await connection.row(_SHARE, **which, at=at):
                return False
            for table in ("pattern_decisions", "pattern_posteriors"):
                await connection.fetch(
                    f"UPDATE {table} SET owner = '' "
                    "WHERE owner = :tenant AND pattern_id = :pattern_id",
                    **which,
                )
            return True

        shared = await self._engine.transact(work)
        await self._report(shared)
        return shared

    async def trim(self, tenant: str, tier: Tier, most: int) -> int:
        which = {"tenant": tenant, "tier": tier.value}

        async def work(connection: Connection) -> int:
            await connection.take_turn(_TABLE)
            extra = await connection.value(_HELD, **which) - most
            if extra <= 0:
                return 0
            removed = [
                {"tenant": tenant, "pattern_id": pattern_id}
                for (pattern_id,) in await connection.fetch(_TRIM, **which, extra=extra)
            ]
            await connection.execute_many(f"DELETE FROM pattern_evidence {_OWN}", removed)
            return len(removed)

        removed = await self._engine.transact(work)
        await self._report(removed)
        return removed

    async def evidence(self, tenant: str, pattern_id: str, limit: int = 200) -> list[EvidenceRow]:
        which = {"tenant": tenant, "pattern_id": pattern_id}
        found = await self._engine.fetch(_SUPPORT, **which, limit=limit)
        return [made(EvidenceRow, _EVIDENCE, row) for row in found]

    async def forget(self, tenant: str | None, run_id: str) -> list[str]:
        of_run = {"run_id": run_id, "tenant": tenant}

        async def work(connection: Connection) -> list[str]:
            await connection.take_turn(_TABLE)
            touched = await connection.fetch(
                f"SELECT DISTINCT tenant, pattern_id FROM pattern_evidence WHERE {_OF_RUN}",
                **of_run,
            )
            for table in ("pattern_evidence", "outcomes", "pattern_decisions"):
                await connection.fetch(f"DELETE FROM {table} WHERE {_OF_RUN}", **of_run)
            await connection.fetch(self._forget_jobs, **of_run)
            gone = [await _remove(owner, name, connection) for owner, name in touched]
            return [name for names in gone for name in names]

        gone = await self._engine.transact(work)
        await self._report(len(gone))
        return gone

    async def _report(self, changed: int) -> None:
        """Tell the other gateways, which keep lessons in memory, if any has changed."""
        if changed:
            await self._engine.changed(PATTERNS)

    def _where(self, wanted: LessonFilter, bound: dict[str, Any]) -> str:
        dialect = self._engine.dialect
        statuses = [str(status) for status in wanted.statuses] or None
        chosen = {
            "tenant": ("p.tenant IN ('', :tenant)", wanted.tenant),
            "tier": ("p.tier = :tier", wanted.tier.value if wanted.tier else None),
            "key": ("p.key = :key", wanted.key),
            "key_prefix": (f"{dialect.position('p.key', 'key_prefix')} = 1", wanted.key_prefix),
            "since": ("p.updated_at >= :since", wanted.since),
            "statuses": (dialect.among("p.status", "statuses", "text"), statuses),
        }
        return conditions(chosen, bound)


async def _learn(
    pattern: Pattern, evidence: Sequence[EvidenceRow], connection: Connection
) -> tuple[bool, int]:
    which = {"pattern_id": pattern.pattern_id, "tenant": pattern.tenant}
    known = await connection.value(_KNOWN, **which)
    if known is None:
        await rows.insert(pattern, connection)
    news = []
    for row in evidence:
        if await connection.fetch(_INSERT_EVIDENCE, **row_of(row, _EVIDENCE)):
            news.append(row)
    confirms = [row.at for row in news if row.kind != "failed_again"]
    if confirms and known is not None:
        await connection.fetch(_CONFIRM, at=max(confirms), pk=known)
    return known is None, len(news)


async def _remove(owner: str, pattern_id: str, connection: Connection) -> list[str]:
    """Remove a lesson without evidence; its id, for each row that is gone."""
    left = {name for (name,) in await connection.fetch(_OWNERS, pattern_id=pattern_id)}
    # A shared lesson is supported by the evidence of all tenants.
    owners = () if owner in left else (owner,) if left else (owner, "")
    removed = [
        await connection.fetch(_REMOVE, tenant=each, pattern_id=pattern_id) for each in owners
    ]
    return [pattern_id for rows in removed if rows]
