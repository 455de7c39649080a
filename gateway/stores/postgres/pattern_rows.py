"""Rows of the patterns table: writing, finding, reading."""

# ruff: noqa: S608 - statements are put together from names of this module; values are bound

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import asyncpg

from gateway.steering.guidance.pattern import Pattern, content_id
from gateway.steering.guidance.render import family_matches
from gateway.stores.pattern_codec import (
    COLUMNS,
    CONTENT_COLUMNS,
    FAMILIES,
    FIELDS,
    NEW_COLUMNS,
    content_values,
    new_values,
    pattern_of,
    stored_pattern,
)
from gateway.stores.patterns import Added, PatternConflict, PatternFilter, StoredPattern, Vector
from gateway.stores.postgres.text import Arguments, read_text, stored_text

_FIELDS_WRITTEN = CONTENT_COLUMNS.index("fields")
_INSERT = f"""
INSERT INTO patterns ({", ".join(NEW_COLUMNS)})
VALUES ({", ".join(f"${n}" for n in range(1, len(NEW_COLUMNS) + 1))}) RETURNING pk
"""
_REPLACE = f"""
UPDATE patterns SET {", ".join(f"{name} = ${n}" for n, name in enumerate(CONTENT_COLUMNS, 1))}
WHERE pk = ${len(CONTENT_COLUMNS) + 1}
"""
_PUT = """
INSERT INTO pattern_vectors (space, pk, tenant, tier, vector)
SELECT $1, p.pk, p.tenant, p.tier, $3::float4[]::vector FROM patterns AS p WHERE p.pk = $2
ON CONFLICT (space, pk) DO UPDATE
SET tenant = excluded.tenant, tier = excluded.tier, vector = excluded.vector
"""
_IS_LESSON = "SELECT origin <> '' FROM patterns WHERE pk = $1"
_FIND = """
SELECT pk FROM patterns WHERE pattern_id = $1 AND ($2::text IS NULL OR tenant IN ('', $2))
ORDER BY tenant DESC LIMIT 1
"""


async def add(
    connection: asyncpg.Connection, space: int, pattern: Pattern, vector: Vector[float] | None
) -> tuple[Added, str]:
    """Insert or replace one pattern, or keep one with the same content; as PatternStore.add."""
    same = await same_content(connection, pattern)
    if same is not None:
        if vector is not None:
            await put(connection, space, same[0], vector)
        return Added.UNCHANGED, same[1]
    pk = await own(connection, pattern)
    if pk is not None and await connection.fetchval(_IS_LESSON, pk):
        raise PatternConflict(f"{pattern.pattern_id!r} is the id of a lesson")
    if pk is not None:
        await replace(connection, space, pk, pattern, vector)
        return Added.REPLACED, pattern.pattern_id
    pk = await insert(connection, pattern)
    if vector is not None:
        await put(connection, space, pk, vector)
    return Added.ADDED, pattern.pattern_id


async def insert(connection: asyncpg.Connection, pattern: Pattern) -> int:
    """Insert a pattern that is not there yet, without a vector; its row."""
    return int(await connection.fetchval(_INSERT, *_stored_values(new_values(pattern))))


async def replace(
    connection: asyncpg.Connection,
    space: int,
    pk: int,
    pattern: Pattern,
    vector: Vector[float] | None,
) -> None:
    """Write the content and the vector of `pattern` to row `pk`; the vectors of other embedders,
    which belong to the old text, are removed."""
    await connection.execute(_REPLACE, *_stored_values(content_values(pattern)), pk)
    await connection.execute("DELETE FROM pattern_vectors WHERE pk = $1", pk)
    if vector is not None:
        await put(connection, space, pk, vector)


async def put(connection: asyncpg.Connection, space: int, pk: int, vector: Vector[float]) -> None:
    """Store the vector of pattern `pk`, in place of an earlier one."""
    await connection.execute(_PUT, space, pk, vector)


async def same_content(connection: asyncpg.Connection, pattern: Pattern) -> tuple[int, str] | None:
    """Row and id of the tenant's pattern with this content, None when there is none."""
    row = await connection.fetchrow(
        "SELECT pk, pattern_id FROM patterns WHERE tenant = $1 AND digest = $2 AND origin = ''",
        stored_text(pattern.tenant),
        content_id(pattern),
    )
    return (row[0], read_text(row[1])) if row else None


async def own(connection: asyncpg.Connection, pattern: Pattern) -> int | None:
    """The row of this tenant's pattern of this id."""
    sql = "SELECT pk FROM patterns WHERE tenant = $1 AND pattern_id = $2"
    names = (stored_text(pattern.tenant), stored_text(pattern.pattern_id))
    pk: int | None = await connection.fetchval(sql, *names)
    return pk


async def find(connection: asyncpg.Connection, tenant: str | None, pattern_id: str) -> int | None:
    """The row of the pattern of this id that `tenant` may see, its own before a shared one."""
    visible = None if tenant is None else stored_text(tenant)
    pk: int | None = await connection.fetchval(_FIND, stored_text(pattern_id), visible)
    return pk


async def select(
    connection: asyncpg.Connection, space: int, condition: str, values: Arguments, limit: int
) -> list[tuple[int, StoredPattern]]:
    """Rows and patterns that match `condition` over `patterns AS p`, newest first."""
    rows = await connection.fetch(
        f"SELECT {COLUMNS}, v.pk IS NOT NULL OR p.tier = 'e3' OR p.origin <> '' "
        "FROM patterns AS p "
        f"LEFT JOIN pattern_vectors AS v ON v.space = {values.add(space)} AND v.pk = p.pk "
        f"WHERE {condition} ORDER BY p.pk DESC LIMIT {limit}",
        *values,
    )
    return [(row[0], stored_pattern(read_row(row))) for row in rows]


def where(patterns: PatternFilter, before: int | None, values: Arguments) -> str:
    """A condition over `patterns AS p`, whose values are added to `values`."""
    wanted: list[tuple[str, Any]] = [
        ("p.tenant IN ('', {})", patterns.tenant),
        ("p.tier = {}", patterns.tier.value if patterns.tier else None),
        ("p.failure_type = {}", patterns.failure_type),
        ("p.model_family = {}", patterns.model_family),
        ("strpos(lower(p.fields), {}) > 0", patterns.text.lower() if patterns.text else None),
        ("(p.origin <> '') = {}", patterns.learned),
        ("p.origin <> '' AND p.status = {}", patterns.status),
        ("p.pk < {}", before),
    ]
    used = [form.format(values.add(value)) for form, value in wanted if value is not None]
    return " AND ".join(["TRUE", *used])


async def suitable_families(connection: asyncpg.Connection, model: str) -> list[str] | None:
    """The model families among the patterns that match `model`; None when all do."""
    families: list[str] = [name for (name,) in await connection.fetch(FAMILIES)]
    suitable = [name for name in families if family_matches(read_text(name), model)]
    return None if suitable == families else suitable


def to_pattern(row: Sequence[Any]) -> Pattern:
    """The pattern of a row of `COLUMNS`. Raises: StoreCorrupt for an invalid row."""
    return pattern_of(read_row(row))


def read_row(row: Sequence[Any]) -> list[Any]:
    """The values of a row that begins with `COLUMNS`, as they were before they were stored."""
    values = list(map(read_text, row))
    values[FIELDS] = row[FIELDS]  # JSON, which writes a NUL as an escape
    return values


def _stored_values(values: Sequence[Any]) -> list[Any]:
    """Values of `CONTENT_COLUMNS`, and others after them, as columns keep them."""
    stored = [stored_text(value) if isinstance(value, str) else value for value in values]
    stored[_FIELDS_WRITTEN] = values[_FIELDS_WRITTEN]
    return stored
