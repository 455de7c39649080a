"""Rows of the patterns table: writing, finding, reading."""

# ruff: noqa: S608 - statements are put together from names of this module; values are bound

from __future__ import annotations

import contextlib
import time
from typing import Any

import apsw
import orjson

from gateway.steering.guidance.families import family_matches
from gateway.steering.guidance.lesson import Lesson, Status, Trust
from gateway.steering.guidance.pattern import Pattern, Tier, content_id
from gateway.stores.patterns import (
    Added,
    Event,
    PatternConflict,
    PatternFilter,
    StoredPattern,
    Vector,
)
from gateway.stores.protocols import StoreCorrupt
from gateway.stores.sqlite.pattern_index import VectorSpace

COLUMNS = (
    "p.pk, p.tenant, p.pattern_id, p.tier, p.failure_type, p.model_family, p.gate_threshold, "
    "p.source_trace_id, p.fields, p.created_at, p.updated_at, p.injected, p.helped, p.hurt, "
    "p.status, p.version, p.supersedes, p.origin, p.trust, p.key, p.applies_when, "
    "p.last_confirmed_at, p.expires_at"
)
_CONTENT = (
    "tier = ?, digest = ?, failure_type = ?, model_family = ?, gate_threshold = ?, "
    "source_trace_id = ?, fields = ?, updated_at = ?"
)
# Jumps from family to family through the index instead of reading every pattern.
_FAMILIES = """
WITH RECURSIVE found(name) AS (
    SELECT min(model_family) FROM patterns
    UNION ALL
    SELECT (SELECT min(model_family) FROM patterns WHERE model_family > name)
    FROM found WHERE name IS NOT NULL
)
SELECT name FROM found WHERE name IS NOT NULL
"""


def add(
    connection: apsw.Connection,
    space: VectorSpace,
    pattern: Pattern,
    vector: Vector[float] | None,
) -> tuple[Added, str]:
    """Insert or replace one pattern, or keep one with the same content; as PatternStore.add."""
    digest = content_id(pattern)
    same = _of_digest(connection, pattern.tenant, digest)
    if same is not None:
        if vector is not None:
            space.put(connection, same[0], vector)
        return Added.UNCHANGED, same[1]
    row = connection.execute(
        "SELECT pk, origin FROM patterns WHERE tenant = ? AND pattern_id = ?",
        (pattern.tenant, pattern.pattern_id),
    ).fetchone()
    if row is not None and row[1]:
        raise PatternConflict(f"{pattern.pattern_id!r} is the id of a lesson")
    if row is not None:
        replace(connection, space, row[0], pattern, vector)
        return Added.REPLACED, pattern.pattern_id
    insert(connection, pattern, digest)
    if vector is not None:
        space.put_first(connection, connection.last_insert_rowid(), vector)
    return Added.ADDED, pattern.pattern_id


def insert(connection: apsw.Connection, pattern: Pattern, digest: str) -> None:
    """Insert a pattern that is not there yet, without a vector; `digest`: its content id."""
    values = _content_values(pattern, digest)
    connection.execute(
        "INSERT INTO patterns (tier, digest, failure_type, model_family, gate_threshold, "
        "source_trace_id, fields, updated_at, created_at, tenant, pattern_id, status, version, "
        "supersedes, origin, trust, key, applies_when, last_confirmed_at, expires_at) "
        "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            *values,
            values[-1],
            pattern.tenant,
            pattern.pattern_id,
            *_lesson_values(pattern.lesson),
        ),
    )


def replace(
    connection: apsw.Connection,
    space: VectorSpace,
    pk: int,
    pattern: Pattern,
    vector: Vector[float] | None,
) -> None:
    """Write the content and the vector of `pattern` to row `pk`."""
    connection.execute(
        f"UPDATE patterns SET {_CONTENT} WHERE pk = ?",
        (*_content_values(pattern, content_id(pattern)), pk),
    )
    _forget(connection, space, pk)
    if vector is not None:
        space.put(connection, pk, vector)


def remove(connection: apsw.Connection, space: VectorSpace, pk: int) -> None:
    """Delete row `pk` and all its vectors."""
    _forget(connection, space, pk)
    connection.execute("DELETE FROM patterns WHERE pk = ?", (pk,))


def _forget(connection: apsw.Connection, space: VectorSpace, pk: int) -> None:
    """Remove the vectors of row `pk`, those of other embedders too: they belong to its old text."""
    space.remove(connection, pk)
    for other in space.others(connection):
        # A damaged space is reported, and rebuilt, when its embedder is in use again.
        with contextlib.suppress(apsw.Error), connection:
            other.remove(connection, pk)


def same_content(connection: apsw.Connection, pattern: Pattern) -> tuple[int, str] | None:
    """Row and id of the tenant's pattern with this content, None when there is none."""
    return _of_digest(connection, pattern.tenant, content_id(pattern))


def _of_digest(connection: apsw.Connection, tenant: str, digest: str) -> tuple[int, str] | None:
    row: Any = connection.execute(
        "SELECT pk, pattern_id FROM patterns WHERE tenant = ? AND digest = ? AND origin = ''",
        (tenant, digest),
    ).fetchone()
    return (row[0], row[1]) if row else None


def find(connection: apsw.Connection, tenant: str | None, pattern_id: str) -> int | None:
    """The row of the pattern of this id that `tenant` may see, its own before a shared one."""
    row = connection.execute(
        "SELECT pk FROM patterns WHERE pattern_id = ? AND (? IS NULL OR tenant IN ('', ?)) "
        "ORDER BY tenant DESC LIMIT 1",
        (pattern_id, tenant, tenant),
    ).fetchone()
    return row[0] if row else None


def select(
    connection: apsw.Connection,
    space: VectorSpace,
    condition: str,
    values: tuple[Any, ...],
    limit: int,
) -> list[tuple[int, StoredPattern]]:
    """Rows and patterns that match `condition` over `patterns AS p`, newest first."""
    rows = connection.execute(
        f"SELECT {COLUMNS}, v.pk IS NOT NULL OR p.tier = 'e3' OR p.origin <> '' "
        f"FROM patterns AS p LEFT JOIN {space.vectors} AS v USING (pk) "
        f"WHERE {condition} ORDER BY p.pk DESC LIMIT ?",
        (*values, limit),
    )
    return [(row[0], _stored(row)) for row in rows]


def where(patterns: PatternFilter, before: int | None) -> tuple[str, tuple[Any, ...]]:
    """A condition over `patterns AS p`, and its values."""
    wanted: list[tuple[str, Any]] = [
        ("p.tenant IN ('', ?)", patterns.tenant),
        ("p.tier = ?", patterns.tier.value if patterns.tier else None),
        ("p.failure_type = ?", patterns.failure_type),
        ("p.model_family = ?", patterns.model_family),
        ("instr(lower(p.fields), ?) > 0", patterns.text.lower() if patterns.text else None),
        ("(p.origin <> '') = ?", patterns.learned),
        ("p.origin <> '' AND p.status = ?", patterns.status),
        ("p.pk < ?", before),
    ]
    used = [(condition, value) for condition, value in wanted if value is not None]
    condition = " AND ".join(["TRUE", *(condition for condition, _ in used)])
    return condition, tuple(value for _, value in used)


def suitable_families(connection: apsw.Connection, model: str) -> list[str] | None:
    """The model families among the patterns that match `model`; None when all do."""
    families: list[str] = [name for (name,) in connection.execute(_FAMILIES)]
    suitable = [name for name in families if family_matches(name, model)]
    return None if suitable == families else suitable


def to_pattern(row: tuple[Any, ...]) -> Pattern:
    """The pattern of a row of `COLUMNS`. Raises: StoreCorrupt for an invalid row."""
    try:
        return Pattern(
            tenant=row[1],
            pattern_id=row[2],
            tier=Tier(row[3]),
            failure_type=row[4] or None,
            model_family=row[5],
            gate_threshold=row[6],
            source_trace_id=row[7],
            fields=orjson.loads(row[8]),
            lesson=_lesson(row[14:23]) if row[17] else None,
        )
    except (ValueError, TypeError) as error:
        raise StoreCorrupt(f"the pattern {row[2]!r} is damaged ({error})") from error


def _lesson(row: tuple[Any, ...]) -> Lesson:
    status, version, supersedes, origin, trust, key, applies_when, confirmed, expires = row
    return Lesson(
        key=key,
        status=Status(status),
        version=version,
        supersedes=supersedes,
        origin=origin,
        trust=Trust(trust),
        applies_when=orjson.loads(applies_when),
        last_confirmed_at=confirmed,
        expires_at=expires,
    )


def _lesson_values(lesson: Lesson | None) -> tuple[Any, ...]:
    """The columns of a lesson; the defaults for a pattern that was not learned."""
    if lesson is None:
        return (Status.ACTIVE.value, 1, "", "", "", "", "{}", 0.0, None)
    return (
        lesson.status.value,
        lesson.version,
        lesson.supersedes,
        lesson.origin,
        lesson.trust.value,
        lesson.key,
        orjson.dumps(dict(lesson.applies_when)).decode(),
        lesson.last_confirmed_at,
        lesson.expires_at,
    )


def _stored(row: tuple[Any, ...]) -> StoredPattern:
    return StoredPattern(
        pattern=to_pattern(row),
        created_at=row[9],
        updated_at=row[10],
        counts=dict(zip((event.value for event in Event), row[11:14], strict=True)),
        indexed=bool(row[23]),
    )


def _content_values(pattern: Pattern, digest: str) -> tuple[Any, ...]:
    return (
        pattern.tier.value,
        digest,
        pattern.failure_type or "",
        pattern.model_family,
        pattern.gate_threshold,
        pattern.source_trace_id,
        orjson.dumps(dict(pattern.fields)).decode(),
        time.time(),
    )
