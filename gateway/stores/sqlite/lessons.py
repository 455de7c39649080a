"""Lessons and their evidence in SQLite: rows of the patterns table that have an origin."""

# ruff: noqa: S608 - statements are put together from names of this package; values are bound

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import apsw

from gateway.steering.guidance.pattern import Pattern, Status, Tier
from gateway.stores import codec
from gateway.stores.learning import EvidenceRow, Learned, LessonFilter, StoredLesson
from gateway.stores.pattern_codec import SELECT_LESSONS, stored_lesson
from gateway.stores.sqlite import pattern_rows as rows
from gateway.stores.sqlite.database import Database

_EVIDENCE = codec.names(EvidenceRow)
_INSERT_EVIDENCE = (
    f"INSERT INTO pattern_evidence ({', '.join(_EVIDENCE)}) "
    f"VALUES ({', '.join('?' * len(_EVIDENCE))}) ON CONFLICT DO NOTHING"
)


class SQLiteLessons:
    """The part of `LearningStore` that is about lessons."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def learn(self, entries: Sequence[tuple[Pattern, Sequence[EvidenceRow]]]) -> Learned:
        """See LearningStore."""
        if any(pattern.lesson is None or not pattern.pattern_id for pattern, _ in entries):
            raise ValueError("pattern: a lesson has an id, and says what it was learned from")

        def work(connection: apsw.Connection) -> Learned:
            kept = [_learn(connection, pattern, evidence) for pattern, evidence in entries]
            return Learned(lessons=sum(new for new, _ in kept), evidence=sum(n for _, n in kept))

        return await self._database.write(work)

    async def lessons(self, wanted: LessonFilter, *, limit: int = 1000) -> list[StoredLesson]:
        """See LearningStore."""
        condition, values = _where(wanted)
        sql = f"{SELECT_LESSONS} AND {condition} ORDER BY p.updated_at DESC, p.pk DESC LIMIT ?"
        return [stored_lesson(row) for row in await self._rows(sql, *values, limit)]

    async def lesson(self, tenant: str | None, pattern_id: str) -> StoredLesson | None:
        """See LearningStore."""
        sql = (
            f"{SELECT_LESSONS} AND p.pattern_id = ? AND (? IS NULL OR p.tenant IN ('', ?)) "
            "ORDER BY p.tenant DESC LIMIT 1"
        )
        found = await self._rows(sql, pattern_id, tenant, tenant)
        return stored_lesson(found[0]) if found else None

    async def move(
        self, tenant: str, pattern_id: str, status: Status, *, reason: str, at: float
    ) -> bool:
        """See LearningStore."""
        return await self._run(
            "UPDATE patterns SET status = ?, reason = ?, updated_at = ? WHERE tenant = ? "
            "AND pattern_id = ? AND origin <> '' AND status <> ?",
            *(status.value, reason, at, tenant, pattern_id, status.value),
        )

    async def prolong(self, tenant: str, pattern_id: str, expires_at: float) -> None:
        """See LearningStore."""
        await self._run(
            "UPDATE patterns SET expires_at = ? WHERE tenant = ? AND pattern_id = ? "
            "AND origin <> ''",
            *(expires_at, tenant, pattern_id),
        )

    async def share(self, tenant: str, pattern_id: str, at: float) -> bool:
        """See LearningStore."""

        def work(connection: apsw.Connection) -> bool:
            shared = connection.execute(
                "SELECT 1 FROM patterns WHERE tenant = '' AND pattern_id = ?", (pattern_id,)
            ).fetchone()
            if shared is not None or not tenant:
                return False
            connection.execute(
                "UPDATE patterns SET tenant = '', reason = 'shared by the operator', "
                "updated_at = ? WHERE tenant = ? AND pattern_id = ? AND tier = 'e2' "
                "AND origin <> ''",
                (at, tenant, pattern_id),
            )
            if not connection.changes():
                return False
            for table in ("pattern_decisions", "pattern_posteriors"):
                connection.execute(
                    f"UPDATE {table} SET owner = '' WHERE owner = ? AND pattern_id = ?",
                    (tenant, pattern_id),
                )
            return True

        return await self._database.write(work)

    async def trim(self, tenant: str, tier: Tier, most: int) -> int:
        """See LearningStore."""
        return await self._database.write(partial(_trim, tenant, tier, most))

    async def evidence(self, tenant: str, pattern_id: str, limit: int = 200) -> list[EvidenceRow]:
        """See LearningStore."""
        found = await self._rows(
            f"SELECT {', '.join(_EVIDENCE)} FROM pattern_evidence WHERE pattern_id = ? "
            "AND (? = '' OR tenant = ?) ORDER BY at DESC, run_id, step_index LIMIT ?",
            *(pattern_id, tenant, tenant, limit),
        )
        return [EvidenceRow(**dict(zip(_EVIDENCE, row, strict=True))) for row in found]

    async def forget(self, tenant: str | None, run_id: str) -> list[str]:
        """See LearningStore."""
        return await self._database.write(partial(_forget, tenant, run_id))

    async def _rows(self, sql: str, *values: Any) -> list[Any]:
        def work(connection: apsw.Connection) -> list[Any]:
            return list(connection.execute(sql, values))

        return await self._database.read(work)

    async def _run(self, sql: str, *values: Any) -> bool:
        """Whether the statement changed a row."""

        def work(connection: apsw.Connection) -> bool:
            connection.execute(sql, values)
            return connection.changes() > 0

        return await self._database.write(work)


def _learn(
    connection: apsw.Connection, pattern: Pattern, evidence: Sequence[EvidenceRow]
) -> tuple[bool, int]:
    known: Any = connection.execute(
        "SELECT pk FROM patterns WHERE pattern_id = ? AND tenant IN ('', ?) AND origin <> ''",
        (pattern.pattern_id, pattern.tenant),
    ).fetchone()
    if known is None:
        rows.insert(connection, pattern)
    news = [row for row in evidence if _is_new(connection, row)]
    confirms = [row.at for row in news if row.kind != "failed_again"]
    if confirms and known is not None:
        connection.execute(
            "UPDATE patterns SET last_confirmed_at = max(last_confirmed_at, ?) WHERE pk = ?",
            (max(confirms), known[0]),
        )
    return known is None, len(news)


def _is_new(connection: apsw.Connection, row: EvidenceRow) -> bool:
    connection.execute(_INSERT_EVIDENCE, tuple(getattr(row, name) for name in _EVIDENCE))
    return connection.changes() > 0


def _where(wanted: LessonFilter) -> tuple[str, tuple[Any, ...]]:
    chosen: list[tuple[str, Any]] = [
        ("p.tenant IN ('', ?)", wanted.tenant),
        ("p.tier = ?", wanted.tier.value if wanted.tier else None),
        ("p.key = ?", wanted.key),
        ("instr(p.key, ?) = 1", wanted.key_prefix),
        ("p.updated_at >= ?", wanted.since),
    ]
    used = [(condition, value) for condition, value in chosen if value is not None]
    if wanted.statuses:
        used.append((f"p.status IN ({', '.join('?' * len(wanted.statuses))})", wanted.statuses))
    values: list[Any] = []
    for _, value in used:
        values += [str(each) for each in value] if isinstance(value, tuple | list) else [value]
    return " AND ".join(["TRUE", *(condition for condition, _ in used)]), tuple(values)


def _trim(tenant: str, tier: Tier, most: int, connection: apsw.Connection) -> int:
    own = (tenant, tier.value)
    held: Any = connection.execute(
        "SELECT count(*) FROM patterns WHERE tenant = ? AND tier = ? AND origin <> ''", own
    ).fetchone()
    extra = held[0] - most
    if extra <= 0:
        return 0
    removed = connection.execute(
        "DELETE FROM patterns WHERE pk IN (SELECT pk FROM patterns WHERE tenant = ? AND tier = ? "
        "AND origin <> '' AND status = 'candidate' ORDER BY last_confirmed_at, pk LIMIT ?) "
        "RETURNING pattern_id",
        (*own, extra),
    ).fetchall()
    for (pattern_id,) in removed:
        connection.execute(
            "DELETE FROM pattern_evidence WHERE tenant = ? AND pattern_id = ?",
            (tenant, pattern_id),
        )
    return len(removed)


def _forget(tenant: str | None, run_id: str, connection: apsw.Connection) -> list[str]:
    own = (run_id, tenant, tenant)
    mine = "run_id = ? AND (? IS NULL OR tenant = ?)"
    touched = connection.execute(
        f"SELECT DISTINCT tenant, pattern_id FROM pattern_evidence WHERE {mine}", own
    ).fetchall()
    for table in ("pattern_evidence", "outcomes", "pattern_decisions"):
        connection.execute(f"DELETE FROM {table} WHERE {mine}", own)
    connection.execute(
        "DELETE FROM jobs WHERE payload ->> 'run' = ? AND (? IS NULL OR tenant = ?)", own
    )
    gone: list[str] = []
    for owner, pattern_id in touched:
        left = connection.execute(
            "SELECT 1 FROM pattern_evidence WHERE pattern_id = ? AND tenant = ? LIMIT 1",
            (pattern_id, owner),
        ).fetchone()
        if left is not None:
            continue
        # A shared lesson stands on the evidence of all tenants.
        others = connection.execute(
            "SELECT 1 FROM pattern_evidence WHERE pattern_id = ? LIMIT 1", (pattern_id,)
        ).fetchone()
        owners = (owner,) if others is not None else (owner, "")
        for each in owners:
            connection.execute(
                "DELETE FROM patterns WHERE tenant = ? AND pattern_id = ? AND origin <> '' "
                "AND origin <> 'written'",
                (each, pattern_id),
            )
            if connection.changes():
                gone.append(str(pattern_id))
    return gone
