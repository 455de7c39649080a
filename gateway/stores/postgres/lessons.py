"""Lessons and their evidence in PostgreSQL: rows of the patterns table that have an origin."""

# ruff: noqa: S608 - statements are put together from names of this package; values are bound

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import asyncpg

from gateway.steering.guidance.lesson import Status
from gateway.steering.guidance.pattern import Pattern, Tier
from gateway.stores import codec
from gateway.stores.learning import EvidenceRow, Learned, LessonFilter, StoredLesson
from gateway.stores.pattern_codec import SELECT_LESSONS, stored_lesson
from gateway.stores.postgres import pattern_rows as rows
from gateway.stores.postgres.database import Database
from gateway.stores.postgres.text import Arguments, read_text, stored_text
from gateway.stores.protocols import PATTERNS

_EVIDENCE = codec.names(EvidenceRow)
_INSERT_EVIDENCE = f"""
INSERT INTO pattern_evidence ({", ".join(_EVIDENCE)})
VALUES ({", ".join(f"${n}" for n in range(1, len(_EVIDENCE) + 1))})
ON CONFLICT DO NOTHING RETURNING TRUE
"""
_KNOWN = """
SELECT pk FROM patterns WHERE pattern_id = $1 AND tenant IN ('', $2) AND origin <> ''
ORDER BY tenant LIMIT 1
"""
_CONFIRM = "UPDATE patterns SET last_confirmed_at = greatest(last_confirmed_at, $1) WHERE pk = $2"
_MOVE = """
UPDATE patterns SET status = $1, reason = $2, updated_at = $3 WHERE tenant = $4
AND pattern_id = $5 AND origin <> '' AND status <> $1 RETURNING TRUE
"""
_PROLONG = """
UPDATE patterns SET expires_at = $1 WHERE tenant = $2 AND pattern_id = $3 AND origin <> ''
"""
_IS_SHARED = "SELECT TRUE FROM patterns WHERE tenant = '' AND pattern_id = $1"
_SHARE = """
UPDATE patterns SET tenant = '', reason = 'shared by the operator', updated_at = $1
WHERE tenant = $2 AND pattern_id = $3 AND tier = 'e2' AND origin <> '' RETURNING TRUE
"""
_HELD = "SELECT count(*) FROM patterns WHERE tenant = $1 AND tier = $2 AND origin <> ''"
_TRIM = """
DELETE FROM patterns WHERE pk IN (
    SELECT pk FROM patterns WHERE tenant = $1 AND tier = $2 AND origin <> ''
    AND status = 'candidate' ORDER BY last_confirmed_at, pk LIMIT $3
) RETURNING pattern_id
"""
_OF_RUN = "run_id = $1 AND ($2::text IS NULL OR tenant = $2)"
_FORGET_JOBS = """
DELETE FROM jobs WHERE payload::json ->> 'run' = $1 AND ($2::text IS NULL OR tenant = $2)
"""
_REMOVE = """
DELETE FROM patterns WHERE tenant = $1 AND pattern_id = $2 AND origin <> ''
AND origin <> 'written' RETURNING TRUE
"""
# Changes of lessons take their turns with each other and with those of patterns, not with reads.
_TURN = "LOCK TABLE patterns IN SHARE ROW EXCLUSIVE MODE"


def texts(values: Iterable[Any]) -> list[Any]:
    """The values as columns keep them."""
    return [stored_text(value) if isinstance(value, str) else value for value in values]


def optional(name: str | None) -> str | None:
    """A name as a column keeps it; None stays."""
    return None if name is None else stored_text(name)


class PostgresLessons:
    """The part of `LearningStore` that is about lessons."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def learn(self, entries: Sequence[tuple[Pattern, Sequence[EvidenceRow]]]) -> Learned:
        """See LearningStore."""
        if any(pattern.lesson is None or not pattern.pattern_id for pattern, _ in entries):
            raise ValueError("pattern: a lesson has an id, and says what it was learned from")

        async def work(connection: asyncpg.Connection) -> Learned:
            await connection.execute(_TURN)
            kept = [await _learn(connection, pattern, evidence) for pattern, evidence in entries]
            return Learned(lessons=sum(new for new, _ in kept), evidence=sum(n for _, n in kept))

        learned = await self._database.transact(work)
        await self._told(learned.lessons)
        return learned

    async def lessons(self, wanted: LessonFilter, *, limit: int = 1000) -> list[StoredLesson]:
        """See LearningStore."""
        values = Arguments()
        condition = _where(wanted, values)
        order = f"ORDER BY p.updated_at DESC, p.pk DESC LIMIT {limit:d}"
        sql = f"{SELECT_LESSONS} AND {condition} {order}"
        return [
            stored_lesson(rows.read_row(row)) for row in await self._database.fetch(sql, *values)
        ]

    async def lesson(self, tenant: str | None, pattern_id: str) -> StoredLesson | None:
        """See LearningStore."""
        sql = (
            f"{SELECT_LESSONS} AND p.pattern_id = $1 "
            "AND ($2::text IS NULL OR p.tenant IN ('', $2)) ORDER BY p.tenant DESC LIMIT 1"
        )
        found = await self._database.fetch(sql, stored_text(pattern_id), optional(tenant))
        return stored_lesson(rows.read_row(found[0])) if found else None

    async def move(
        self, tenant: str, pattern_id: str, status: Status, *, reason: str, at: float
    ) -> bool:
        """See LearningStore."""
        owner = texts((tenant, pattern_id))
        changed = (status.value, stored_text(reason), at, *owner)
        moved = bool(await self._database.fetch(_MOVE, *changed))
        await self._told(moved)
        return moved

    async def prolong(self, tenant: str, pattern_id: str, expires_at: float) -> None:
        """See LearningStore."""
        await self._database.fetch(_PROLONG, expires_at, *texts((tenant, pattern_id)))

    async def share(self, tenant: str, pattern_id: str, at: float) -> bool:
        """See LearningStore."""
        owner = texts((tenant, pattern_id))

        async def work(connection: asyncpg.Connection) -> bool:
            await connection.execute(_TURN)
            if not tenant or await connection.fetchval(_IS_SHARED, owner[1]):
                return False
            if not await connection.fetchval(_SHARE, at, *owner):
                return False
            for table in ("pattern_decisions", "pattern_posteriors"):
                await connection.execute(
                    f"UPDATE {table} SET owner = '' WHERE owner = $1 AND pattern_id = $2", *owner
                )
            return True

        shared = await self._database.transact(work)
        await self._told(shared)
        return shared

    async def trim(self, tenant: str, tier: Tier, most: int) -> int:
        """See LearningStore."""
        removed = await self._database.transact(partial(_trim, stored_text(tenant), tier, most))
        await self._told(removed)
        return removed

    async def evidence(self, tenant: str, pattern_id: str, limit: int = 200) -> list[EvidenceRow]:
        """See LearningStore."""
        found = await self._database.fetch(
            f"SELECT {', '.join(_EVIDENCE)} FROM pattern_evidence WHERE pattern_id = $1 "
            "AND ($2 = '' OR tenant = $2) ORDER BY at DESC, run_id, step_index LIMIT $3",
            *(stored_text(pattern_id), stored_text(tenant), limit),
        )
        return [
            EvidenceRow(**dict(zip(_EVIDENCE, map(read_text, row), strict=True))) for row in found
        ]

    async def forget(self, tenant: str | None, run_id: str) -> list[str]:
        """See LearningStore."""
        owner = optional(tenant)
        gone = await self._database.transact(partial(_forget, owner, stored_text(run_id)))
        await self._told(len(gone))
        return gone

    async def _told(self, changed: int) -> None:
        """Tell the other gateways, which keep lessons in memory, if any has changed."""
        if changed:
            await self._database.changed(PATTERNS)


async def _learn(
    connection: asyncpg.Connection, pattern: Pattern, evidence: Sequence[EvidenceRow]
) -> tuple[bool, int]:
    names = texts((pattern.pattern_id, pattern.tenant))
    known = await connection.fetchval(_KNOWN, *names)
    if known is None:
        await rows.insert(connection, pattern)
    news = [row for row in evidence if await _is_new(connection, row)]
    confirms = [row.at for row in news if row.kind != "failed_again"]
    if confirms and known is not None:
        await connection.execute(_CONFIRM, max(confirms), known)
    return known is None, len(news)


async def _is_new(connection: asyncpg.Connection, row: EvidenceRow) -> bool:
    values = texts(getattr(row, name) for name in _EVIDENCE)
    return bool(await connection.fetchval(_INSERT_EVIDENCE, *values))


def _where(wanted: LessonFilter, values: Arguments) -> str:
    chosen: list[tuple[str, Any]] = [
        ("p.tenant IN ('', {})", wanted.tenant),
        ("p.tier = {}", wanted.tier.value if wanted.tier else None),
        ("p.key = {}", wanted.key),
        ("starts_with(p.key, {})", wanted.key_prefix),
        ("p.updated_at >= {}", wanted.since),
        ("p.status = ANY({}::text[])", [str(each) for each in wanted.statuses] or None),
    ]
    used = [form.format(values.add(value)) for form, value in chosen if value is not None]
    return " AND ".join(["TRUE", *used])


async def _trim(tenant: str, tier: Tier, most: int, connection: asyncpg.Connection) -> int:
    await connection.execute(_TURN)
    extra = await connection.fetchval(_HELD, tenant, tier.value) - most
    if extra <= 0:
        return 0
    removed = await connection.fetch(_TRIM, tenant, tier.value, extra)
    await connection.execute(
        "DELETE FROM pattern_evidence WHERE tenant = $1 AND pattern_id = ANY($2::text[])",
        *(tenant, [pattern_id for (pattern_id,) in removed]),
    )
    return len(removed)


async def _forget(tenant: str | None, run_id: str, connection: asyncpg.Connection) -> list[str]:
    await connection.execute(_TURN)
    touched = await connection.fetch(
        f"SELECT DISTINCT tenant, pattern_id FROM pattern_evidence WHERE {_OF_RUN}", run_id, tenant
    )
    for table in ("pattern_evidence", "outcomes", "pattern_decisions"):
        await connection.execute(f"DELETE FROM {table} WHERE {_OF_RUN}", run_id, tenant)
    await connection.execute(_FORGET_JOBS, run_id, tenant)
    gone = []
    for owner, pattern_id in touched:
        left = {
            name
            for (name,) in await connection.fetch(
                "SELECT DISTINCT tenant FROM pattern_evidence WHERE pattern_id = $1", pattern_id
            )
        }
        # A shared lesson is supported by the evidence of all tenants.
        owners = () if owner in left else (owner,) if left else (owner, "")
        for each in owners:
            if await connection.fetchval(_REMOVE, each, pattern_id):
                gone.append(read_text(pattern_id))
    return gone
