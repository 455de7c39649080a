"""Sums over trees and groups of runs."""

from __future__ import annotations

from typing import Any

from gateway.stores import usage
from gateway.stores.queries import RunFilter
from gateway.stores.sql import filters
from gateway.stores.sql.engine import Connection, Engine, columns, made


def _sum(name: str) -> str:
    is_usd = name.endswith("usd")
    if name in usage.ESTIMATED:
        counter = f"r.counts -> 'estimated' ->> '{usage.ESTIMATED[name]}'"
        summed = f"coalesce(sum(CAST({counter} AS DOUBLE PRECISION)), 0.0)"
        return summed if is_usd else f"CAST({summed} AS BIGINT)"
    # sum() of only unknown values is NULL: the cost stays unknown.
    return f"sum(r.{name})" if is_usd else f"CAST(coalesce(sum(r.{name}), 0) AS BIGINT)"


_SUMS = ", ".join(["count(r.pk)", *map(_sum, usage.SUMMED)])
_EXPRESSIONS = {"key": "r.key_name", "model": "r.model_requested"} | {
    name: f"coalesce(r.{name}, '')"
    for name in ("tenant", "agent", "experiment", "arm", "mode", "outcome", "state")
}
# Up to the root; rows of older gateways name the parent only.
_ROOT = """
WITH RECURSIVE above (id, root_id, parent_id, depth) AS (
    SELECT id, root_id, parent_id, 0 FROM conversations WHERE id = :id
    UNION ALL
    SELECT coalesce(c.id, a.parent_id), c.root_id, c.parent_id, a.depth + 1
    FROM above AS a LEFT JOIN conversations AS c ON c.id = a.parent_id
    WHERE a.root_id IS NULL AND a.parent_id IS NOT NULL AND a.depth < 32
)
SELECT coalesce(root_id, id) FROM above ORDER BY depth DESC LIMIT 1
"""
_NODE = ("id", "parent_id", "external_key", "created_at", "updated_at")
_TREE = f"""
WITH RECURSIVE tree (id) AS (
    SELECT id FROM conversations WHERE id = :root OR root_id = :root
    UNION
    SELECT c.id FROM conversations AS c JOIN tree ON c.parent_id = tree.id
)
SELECT {columns(_NODE, "c.")}, {_SUMS}
FROM conversations AS c LEFT JOIN runs AS r ON r.conversation_pk = c.pk
WHERE c.id IN (SELECT id FROM tree) AND (CAST(:tenant AS TEXT) IS NULL OR c.tenant = :tenant)
GROUP BY c.pk ORDER BY c.created_at, c.id
"""


class SQLAttributionStore:
    """`AttributionStore` over an engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def tree(self, conversation_id: str, *, tenant: str | None) -> usage.Tree | None:
        async def work(connection: Connection) -> usage.Tree | None:
            root = await connection.value(_ROOT, id=conversation_id)
            rows = await connection.fetch(_TREE, root=root, tenant=tenant) if root else []
            if not any(row[0] == conversation_id for row in rows):
                return None
            about, width = (*_NODE, "sums"), len(_NODE)
            nodes = [
                made(usage.TreeNode, about, (*row[:width], usage.sums_of(row[width:])))
                for row in rows
            ]
            total = usage.added([node.sums for node in nodes])
            return usage.Tree(root_id=root, nodes=tuple(nodes), total=total)

        return await self._engine.view(work)

    async def groups(self, runs: RunFilter, by: str) -> tuple[usage.Group, ...]:
        if by not in usage.GROUPS and not (by.startswith(usage.TAG) and len(by) > len(usage.TAG)):
            raise ValueError(
                f"by: must be {usage.TAG}NAME or one of {', '.join(usage.GROUPS)}, not {by[:60]!r}"
            )
        dialect = self._engine.dialect
        values: dict[str, Any] = {"by_tag": by.removeprefix(usage.TAG)}
        condition = filters.where(runs.summed, values, dialect)
        if by.startswith(usage.TAG):
            expression = f"coalesce({dialect.entry('r.tags', 'by_tag')}, '')"
        elif by == "day":
            expression = dialect.day("r.started_at")
        else:
            expression = _EXPRESSIONS[by]
        sql = f"""
            SELECT ({expression}) {dialect.bytewise} AS value, {_SUMS} FROM runs AS r
            WHERE {condition} GROUP BY 1 ORDER BY coalesce(sum(r.cost_usd), 0) DESC, 1
        """
        rows = await self._engine.fetch(sql, **values)
        return tuple([usage.Group(value=str(row[0]), sums=usage.sums_of(row[1:])) for row in rows])
