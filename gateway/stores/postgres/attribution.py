"""Sums over trees and groups of runs in PostgreSQL."""

# ruff: noqa: S608 - statements are put together from names of this package; values are bound

from __future__ import annotations

from functools import partial

import asyncpg

from gateway.stores.postgres import filters
from gateway.stores.postgres.database import Database
from gateway.stores.postgres.text import Arguments, read_text, stored_text
from gateway.stores.queries import RunFilter
from gateway.stores.usage import (
    ESTIMATED,
    GROUPS,
    SUMMED,
    TAG,
    Group,
    Tree,
    TreeNode,
    added,
    sums_of,
)


def _sum(name: str) -> str:
    kind = "float8" if name.endswith("usd") else "bigint"
    if name in ESTIMATED:
        counter = f"r.counts::jsonb -> 'estimated' ->> '{ESTIMATED[name]}'"
        return f"coalesce(sum(({counter})::float8), 0)::{kind}"
    # sum() of only unknown values is NULL: the cost stays unknown.
    return f"sum(r.{name})" if kind == "float8" else f"coalesce(sum(r.{name}), 0)::{kind}"


_SUMS = ", ".join(["count(r.pk)", *map(_sum, SUMMED)])
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
        return tuple(Group(value=str(read_text(row[0])), sums=sums_of(row[1:])) for row in rows)


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
            sums=sums_of(row[5:]),
        )
        for row in rows
    )
    total = added([node.sums for node in nodes])
    return Tree(root_id=read_text(root), nodes=nodes, total=total)
