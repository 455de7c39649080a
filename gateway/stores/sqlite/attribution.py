"""Sums over trees and groups of runs in SQLite."""

# ruff: noqa: S608 - statements are put together from names of this package; values are bound

from __future__ import annotations

from functools import partial
from typing import Any

import apsw

from gateway.stores.queries import RunFilter
from gateway.stores.sqlite import filters
from gateway.stores.sqlite.connection import one_view
from gateway.stores.sqlite.database import Database
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

_MOST_ABOVE = 32


def _sum(name: str) -> str:
    if name in ESTIMATED:
        none = "0.0" if name.endswith("usd") else "0"
        return f"coalesce(sum(r.counts ->> '$.estimated.{ESTIMATED[name]}'), {none})"
    # sum() of only unknown values is NULL: the cost stays unknown.
    return f"sum(r.{name})" if name.endswith("usd") else f"coalesce(sum(r.{name}), 0)"


_SUMS = ", ".join(["count(r.pk)", *map(_sum, SUMMED)])
_EXPRESSIONS = {
    "key": "r.key_name",
    "model": "r.model_requested",
    "day": "strftime('%Y-%m-%d', r.started_at, 'unixepoch')",
} | {
    name: f"coalesce(r.{name}, '')"
    for name in ("tenant", "agent", "experiment", "arm", "mode", "outcome", "state")
}
_BY_TAG = "coalesce((SELECT value FROM json_each(r.tags) WHERE key = ?), '')"
_ABOVE = "SELECT root_id, parent_id FROM conversations WHERE id = ?"
_TREE = f"""
WITH RECURSIVE tree (id) AS (
    SELECT id FROM conversations WHERE id = ?1 OR root_id = ?1
    UNION
    SELECT c.id FROM conversations AS c JOIN tree ON c.parent_id = tree.id
)
SELECT c.id, c.parent_id, c.external_key, c.created_at, c.updated_at, {_SUMS}
FROM conversations AS c LEFT JOIN runs AS r ON r.conversation_pk = c.pk
WHERE c.id IN (SELECT id FROM tree) AND (?2 IS NULL OR c.tenant = ?2)
GROUP BY c.pk ORDER BY c.created_at, c.id
"""


class SQLiteAttributionStore:
    """`AttributionStore` over a Database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def tree(self, conversation_id: str, *, tenant: str | None) -> Tree | None:
        """See AttributionStore."""
        return await self._database.read(one_view(partial(_tree, conversation_id, tenant)))

    async def groups(self, runs: RunFilter, by: str) -> tuple[Group, ...]:
        """See AttributionStore."""
        if by not in GROUPS and not (by.startswith(TAG) and len(by) > len(TAG)):
            raise ValueError(
                f"by: must be {TAG}NAME or one of {', '.join(GROUPS)}, not {by[:60]!r}"
            )
        return await self._database.read(partial(_groups, runs, by))


def _tree(conversation_id: str, tenant: str | None, connection: apsw.Connection) -> Tree | None:
    root = _root(conversation_id, connection)
    if root is None:
        return None
    rows: list[Any] = connection.execute(_TREE, (root, tenant)).fetchall()
    if not any(row[0] == conversation_id for row in rows):
        return None
    nodes = tuple(
        TreeNode(
            id=row[0],
            parent_id=row[1],
            external_key=row[2],
            created_at=row[3],
            updated_at=row[4],
            sums=sums_of(row[5:]),
        )
        for row in rows
    )
    return Tree(root_id=root, nodes=nodes, total=added([node.sums for node in nodes]))


def _root(conversation_id: str, connection: apsw.Connection) -> str | None:
    """The root of a conversation's tree; rows of older files name the parent only."""
    here = conversation_id
    for step in range(_MOST_ABOVE):
        found: list[Any] = connection.execute(_ABOVE, (here,)).fetchall()
        if not found:
            return here if step else None
        root, parent = found[0]
        if root is not None or parent is None:
            return root or here
        here = parent
    return here


def _groups(runs: RunFilter, by: str, connection: apsw.Connection) -> tuple[Group, ...]:
    condition, values = filters.where(runs)
    is_tag = by.startswith(TAG)
    expression = _BY_TAG if is_tag else _EXPRESSIONS[by]
    sql = f"""
        SELECT {expression} AS value, {_SUMS} FROM runs AS r WHERE {condition}
        GROUP BY 1 ORDER BY coalesce(sum(r.cost_usd), 0) DESC, 1
    """
    bound = [by.removeprefix(TAG), *values] if is_tag else values
    return tuple(
        Group(value=str(row[0]), sums=sums_of(row[1:])) for row in connection.execute(sql, bound)
    )
