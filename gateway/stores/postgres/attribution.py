"""Sums over trees and groups of runs in PostgreSQL."""

# ruff: noqa: S608 - statements are put together from names of this package; values are bound

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from functools import partial
from typing import Any

import asyncpg

from gateway.stores.attribution import GROUPS, TAG, Group, Sums, Tree, TreeNode
from gateway.stores.postgres import filters
from gateway.stores.postgres.database import Database
from gateway.stores.postgres.text import Arguments, read_text, stored_text
from gateway.stores.queries import RunFilter

_SUMMED = [f.name for f in fields(Sums) if f.name != "runs"]
_SUMS = ", ".join(
    ["count(r.pk)"]
    + [
        f"sum(r.{name})" if name.endswith("usd") else f"coalesce(sum(r.{name}), 0)::bigint"
        for name in _SUMMED
    ]
)
_EXPRESSIONS = {
    "key": "r.key_name",
    "model": "r.model_requested",
    "day": "to_char(to_timestamp(r.started_at) AT TIME ZONE 'UTC', 'YYYY-MM-DD')",
} | {
    name: f"coalesce(r.{name}, '')"
    for name in ("tenant", "agent", "experiment", "arm", "mode", "outcome", "state")
}
# Up to the root; rows of older gateways name the parent only.
_ROOT = """
WITH RECURSIVE above (id, root_id, parent_id, depth) AS (
    SELECT id, root_id, parent_id, 0 FROM conversations WHERE id = $1
    UNION ALL
    SELECT coalesce(c.id, a.parent_id), c.root_id, c.parent_id, a.depth + 1
    FROM above AS a LEFT JOIN conversations AS c ON c.id = a.parent_id
    WHERE a.root_id IS NULL AND a.parent_id IS NOT NULL AND a.depth < 32
)
SELECT coalesce(root_id, id) FROM above ORDER BY depth DESC LIMIT 1
"""
_TREE = f"""
WITH RECURSIVE tree (id) AS (
    SELECT id FROM conversations WHERE id = $1 OR root_id = $1
    UNION
    SELECT c.id FROM conversations AS c JOIN tree ON c.parent_id = tree.id
)
SELECT c.id, c.parent_id, c.external_key, c.created_at, c.updated_at, {_SUMS}
FROM conversations AS c LEFT JOIN runs AS r ON r.conversation_pk = c.pk
WHERE c.id IN (SELECT id FROM tree) AND ($2::text IS NULL OR c.tenant = $2)
GROUP BY c.pk ORDER BY c.created_at, c.id
"""


class PostgresAttributionStore:
    """`AttributionStore` over a Database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def tree(self, conversation_id: str, *, tenant: str | None) -> Tree | None:
        """See AttributionStore."""
        return await self._database.view(partial(_tree, conversation_id, tenant))

    async def groups(self, runs: RunFilter, by: str) -> tuple[Group, ...]:
        """See AttributionStore."""
        if by not in GROUPS and not (by.startswith(TAG) and len(by) > len(TAG)):
            raise ValueError(
                f"by: must be {TAG}NAME or one of {', '.join(GROUPS)}, not {by[:60]!r}"
            )
        values = Arguments()
        condition = filters.where(runs, values)
        if by.startswith(TAG):
            expression = f"coalesce(r.tags ->> {values.add(by.removeprefix(TAG))}, '')"
        else:
            expression = _EXPRESSIONS[by]
        sql = f"""
            SELECT ({expression}) COLLATE "C" AS value, {_SUMS} FROM runs AS r WHERE {condition}
            GROUP BY 1 ORDER BY coalesce(sum(r.cost_usd), 0) DESC, 1
        """
        rows = await self._database.fetch(sql, *values)
        return tuple(Group(value=str(read_text(row[0])), sums=_sums(row[1:])) for row in rows)


async def _tree(
    conversation_id: str, tenant: str | None, connection: asyncpg.Connection
) -> Tree | None:
    wanted = stored_text(conversation_id)
    root = await connection.fetchval(_ROOT, wanted)
    owner = None if tenant is None else stored_text(tenant)
    rows = await connection.fetch(_TREE, root, owner) if root is not None else []
    if not any(row[0] == wanted for row in rows):
        return None
    nodes = tuple(
        TreeNode(
            id=read_text(row[0]),
            parent_id=read_text(row[1]),
            external_key=read_text(row[2]),
            created_at=row[3],
            updated_at=row[4],
            sums=_sums(row[5:]),
        )
        for row in rows
    )
    total = _added([node.sums for node in nodes])
    return Tree(root_id=read_text(root), nodes=nodes, total=total)


def _sums(row: Sequence[Any]) -> Sums:
    return Sums(runs=row[0], **dict(zip(_SUMMED, row[1:], strict=True)))


def _added(parts: Sequence[Sums]) -> Sums:
    def total(name: str) -> Any:
        values = [getattr(part, name) for part in parts]
        known = [value for value in values if value is not None]
        return sum(known) if known else None

    return Sums(runs=sum(part.runs for part in parts), **{name: total(name) for name in _SUMMED})
