"""Rows of the patterns table: writing and finding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gateway.steering.guidance.pattern import Pattern, content_id
from gateway.steering.guidance.render import family_matches
from gateway.stores.pattern_codec import (
    COLUMNS,
    CONTENT_COLUMNS,
    FAMILIES,
    NEW_COLUMNS,
    content_values,
    new_values,
    stored_pattern,
)
from gateway.stores.patterns import Added, PatternConflict, PatternFilter, StoredPattern, Vector
from gateway.stores.sql.engine import Connection, Dialect, VectorIndex, assigned, columns, values

_INSERT = f"""
INSERT INTO patterns ({columns(NEW_COLUMNS)}) VALUES ({values(NEW_COLUMNS)}) RETURNING pk
"""
_REPLACE = f"UPDATE patterns SET {assigned(CONTENT_COLUMNS)} WHERE pk = :pk"
_SAME = """
SELECT pk, pattern_id FROM patterns WHERE tenant = :tenant AND digest = :digest AND origin = ''
"""
_OWN = "SELECT pk, origin FROM patterns WHERE tenant = :tenant AND pattern_id = :pattern_id"
_FIND = """
SELECT pk FROM patterns WHERE pattern_id = :pattern_id
    AND (CAST(:tenant AS TEXT) IS NULL OR tenant IN ('', :tenant))
ORDER BY tenant DESC LIMIT 1
"""


async def add(
    pattern: Pattern, vector: Vector[float] | None, index: VectorIndex, connection: Connection
) -> tuple[Added, str]:
    """Insert or replace one pattern, or keep one with the same content; as PatternStore.add."""
    same = await same_content(pattern, connection)
    if same is not None:
        if vector is not None:
            await index.put(same[0], vector, connection)
        return Added.UNCHANGED, same[1]
    known = await own(pattern, connection)
    if known is not None and known[1]:
        raise PatternConflict(f"{pattern.pattern_id!r} is the id of a lesson")
    if known is not None:
        await replace(known[0], pattern, vector, index, connection)
        return Added.REPLACED, pattern.pattern_id
    pk = await insert(pattern, connection)
    if vector is not None:
        await index.put(pk, vector, connection)
    return Added.ADDED, pattern.pattern_id


async def insert(pattern: Pattern, connection: Connection) -> int:
    """Insert a pattern that is not there yet, without a vector; its row."""
    row = dict(zip(NEW_COLUMNS, new_values(pattern), strict=True))
    return int(await connection.value(_INSERT, **row))


async def replace(
    pk: int,
    pattern: Pattern,
    vector: Vector[float] | None,
    index: VectorIndex,
    connection: Connection,
) -> None:
    """Write the content and the vector of `pattern` to row `pk`; the vectors of other embedders,
    which belong to the old text, are removed."""
    row = dict(zip(CONTENT_COLUMNS, content_values(pattern), strict=True))
    await connection.fetch(_REPLACE, **row, pk=pk)
    await index.forget(pk, connection)
    if vector is not None:
        await index.put(pk, vector, connection)


async def same_content(pattern: Pattern, connection: Connection) -> tuple[int, str] | None:
    """Row and id of the tenant's pattern with this content, None when there is none."""
    row = await connection.row(_SAME, tenant=pattern.tenant, digest=content_id(pattern))
    return (row[0], row[1]) if row else None


async def own(pattern: Pattern, connection: Connection) -> tuple[int, str] | None:
    """Row and origin of this tenant's pattern of this id."""
    row = await connection.row(_OWN, tenant=pattern.tenant, pattern_id=pattern.pattern_id)
    return (row[0], row[1]) if row else None


async def find(tenant: str | None, pattern_id: str, connection: Connection) -> int | None:
    """The row of the pattern of this id that `tenant` may see, its own before a shared one."""
    pk: int | None = await connection.value(_FIND, pattern_id=pattern_id, tenant=tenant)
    return pk


async def select(
    condition: str, bound: dict[str, Any], limit: int, index: VectorIndex, connection: Connection
) -> list[tuple[int, StoredPattern]]:
    """Rows and patterns that match `condition` over `patterns AS p`, newest first."""
    rows = await connection.fetch(
        f"SELECT {COLUMNS}, v.pk IS NOT NULL OR p.tier = 'e3' OR p.origin <> '' "
        f"FROM patterns AS p {index.joined} WHERE {condition} ORDER BY p.pk DESC LIMIT {limit}",
        **bound,
    )
    return [(row[0], stored_pattern(row)) for row in rows]


def where(
    patterns: PatternFilter, before: int | None, bound: dict[str, Any], dialect: Dialect
) -> str:
    """A condition over `patterns AS p`, whose values are added to `bound`."""
    wanted: list[tuple[str, str, Any]] = [
        ("p.tenant IN ('', :tenant)", "tenant", patterns.tenant),
        ("p.tier = :tier", "tier", patterns.tier.value if patterns.tier else None),
        ("p.failure_type = :failure_type", "failure_type", patterns.failure_type),
        ("p.model_family = :model_family", "model_family", patterns.model_family),
        (
            f"{dialect.position('lower(p.fields)', 'text')} > 0",
            "text",
            patterns.text.lower() if patterns.text else None,
        ),
        ("(p.origin <> '') = :learned", "learned", patterns.learned),
        ("p.origin <> '' AND p.status = :status", "status", patterns.status),
        ("p.pk < :before", "before", before),
    ]
    used = [each for each in wanted if each[2] is not None]
    bound.update({name: value for _, name, value in used})
    return " AND ".join(["TRUE", *[condition for condition, _, _ in used]])


async def suitable_families(model: str, connection: Connection) -> Sequence[str] | None:
    """The model families among the patterns that match `model`; None when all do."""
    families: list[str] = [name for (name,) in await connection.fetch(FAMILIES)]
    suitable = [name for name in families if family_matches(name, model)]
    return None if suitable == families else suitable
