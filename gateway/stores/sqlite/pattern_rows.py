"""Rows of the patterns table in SQLite: writing and finding."""

# ruff: noqa: S608 - statements are put together from names of this module; values are bound

from __future__ import annotations

import contextlib
from typing import Any

import apsw

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
from gateway.stores.sqlite.pattern_index import VectorSpace

_INSERT = f"""
INSERT INTO patterns ({", ".join(NEW_COLUMNS)})
VALUES ({", ".join("?" * len(NEW_COLUMNS))})
"""
_REPLACE = f"""
UPDATE patterns SET {", ".join(f"{name} = ?" for name in CONTENT_COLUMNS)} WHERE pk = ?
"""


def add(
    connection: apsw.Connection,
    space: VectorSpace,
    pattern: Pattern,
    vector: Vector[float] | None,
) -> tuple[Added, str]:
    """Insert or replace one pattern, or keep one with the same content; as PatternStore.add."""
    same = same_content(connection, pattern)
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
    insert(connection, pattern)
    if vector is not None:
        space.put_first(connection, connection.last_insert_rowid(), vector)
    return Added.ADDED, pattern.pattern_id


def insert(connection: apsw.Connection, pattern: Pattern) -> None:
    """Insert a pattern that is not there yet, without a vector."""
    connection.execute(_INSERT, new_values(pattern))


def replace(
    connection: apsw.Connection,
    space: VectorSpace,
    pk: int,
    pattern: Pattern,
    vector: Vector[float] | None,
) -> None:
    """Write the content and the vector of `pattern` to row `pk`."""
    connection.execute(_REPLACE, (*content_values(pattern), pk))
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
    row: Any = connection.execute(
        "SELECT pk, pattern_id FROM patterns WHERE tenant = ? AND digest = ? AND origin = ''",
        (pattern.tenant, content_id(pattern)),
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
    return [(row[0], stored_pattern(row)) for row in rows]


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
    families: list[str] = [name for (name,) in connection.execute(FAMILIES)]
    suitable = [name for name in families if family_matches(name, model)]
    return None if suitable == families else suitable
