"""Sums over trees and groups of runs, and those of calls by the hour, to which each commit adds.

Sums, because the steps of ten thousand runs are too many to read for one page; by the call and not
by the run, because one run may last for days. They stay when retention removes the runs."""

from collections.abc import Iterator, Sequence
from typing import Any

from gateway.stores import usage
from gateway.stores.queries import RunFilter
from gateway.stores.records import IMPORTED, RunUpdate, StepRow
from gateway.stores.sql import filters
from gateway.stores.sql.engine import Connection, Dialect, Engine, Row, columns, made, row_of
from gateway.stores.sql.filters import IS_LIVE
from gateway.stores.usage import AMOUNTS, SUMS, UsagePoint, UsageQuery, bucket_sql, merged, tag_of

_BY = {"model": ("model", "model_requested"), "agent": ("agent",) * 2, "tenant": ("tenant",) * 2}
_STARTED_HOUR = "(CAST(floor(r.started_at / 3600) AS BIGINT) * 3600)"
_AMOUNTS = ("cost_usd", *AMOUNTS)
ADDED = (*SUMS, *_AMOUNTS)
"""The sums that a commit adds to, for an hour, an agent and a model."""

_SUMMED = ", ".join(
    [*[f"CAST(sum(u.{name}) AS BIGINT)" for name in SUMS], *[f"sum(u.{name})" for name in _AMOUNTS]]
)
_OUTCOMES = ("runs", "successes", "failures")


def usage_rows(
    run: RunUpdate, fresh: Sequence[StepRow], called: Sequence[StepRow]
) -> Iterator[tuple[Any, ...]]:
    """Rows to add for newly scored steps and for calls: hour, agent, model, then ADDED. None for an
    imported run, which is no use of this gateway."""
    if run.mode == IMPORTED:
        return
    new, made = set(map(id, fresh)), set(map(id, called))
    silent: dict[int, list[bool]] = {}
    for step in {id(step): step for step in (*fresh, *called)}.values():
        is_new = step.composite is not None and id(step) in new
        call = step.call if id(step) in made else None
        hour = int(step.at) // 3600 * 3600
        if call is not None:
            tokens = (call.input_tokens or 0, call.cached_tokens or 0, call.output_tokens or 0)
            how = (int(call.failed), int(bool(call.unsteered)), int(call.unpriced))
            *guessed, guessed_usd = call.estimated
            amounts = (call.cost_usd, call.latency_s, guessed_usd)
            counts = (int(is_new), int(is_new and bool(step.fired)))
            key = (hour, run.agent, call.model_asked)
            yield (*key, 1, *how, *counts, *tokens, *guessed, *amounts)
        elif is_new:
            silent.setdefault(hour, []).append(bool(step.fired))
    # The steps of a history that is seen for the first time: one row for all of them.
    for hour, fired in silent.items():
        none = (0, 0, 0, 0, 0, None, 0.0, 0.0)
        yield (hour, run.agent, run.model_requested, 0, 0, 0, 0, len(fired), sum(fired), *none)


async def usage_of(query: UsageQuery, dialect: Dialect, connection: Connection) -> list[UsagePoint]:
    values = row_of(query, ("since", "until", "tenant", "agent", "model"))
    values["by_tag"] = tag_of(query.by or "")
    sql = f"""
        SELECT {bucket_sql("u.hour", query.bucket)}, {_name(query, dialect, "u", 0)}, {_SUMMED}
        FROM usage_by_hour AS u WHERE {_where(query, "u", "hour", "model")} GROUP BY 1, 2
    """
    usage = _by_place(ADDED, await connection.fetch(sql, **values))
    sql = f"""
        SELECT {bucket_sql(_STARTED_HOUR, query.bucket)}, {_name(query, dialect, "r", 1)},
            count(*), count(*) FILTER (WHERE r.outcome = 'success'),
            count(*) FILTER (WHERE r.outcome = 'failure')
        FROM runs AS r WHERE {IS_LIVE} AND {_where(query, "r", "started_at", "model_requested")}
        GROUP BY 1, 2
    """
    return merged(usage, _by_place(_OUTCOMES, await connection.fetch(sql, **values)))


def _by_place(names: Sequence[str], rows: Sequence[Row]) -> dict[tuple[Any, Any], dict[str, Any]]:
    """Sums by bucket and name."""
    return {(row[0], row[1]): dict(zip(names, row[2:], strict=True)) for row in rows}


def _name(query: UsageQuery, dialect: Dialect, table: str, which: int) -> str:
    """The SQL expression that calls (0) and runs (1) are grouped by."""
    if query.by is None:
        return "''"
    if tag_of(query.by):
        return f"coalesce({dialect.entry(f'{table}.tags', 'by_tag')}, '')"
    return f"{table}.{_BY[query.by][which]}"


def _where(query: UsageQuery, table: str, time: str, model: str) -> str:
    conditions = [
        f"{table}.{time} >= CAST(:since AS DOUBLE PRECISION)",
        f"{table}.{time} < CAST(:until AS DOUBLE PRECISION)",
    ]
    names = {"tenant": "tenant", "model": model, "agent": "agent"}
    wanted = {name: column for name, column in names.items() if getattr(query, name) is not None}
    return " AND ".join([*conditions, *[f"{table}.{c} = :{name}" for name, c in wanted.items()]])


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


class AttributionStore:
    """Sums over the run log. Every method may raise StoreError."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def tree(self, conversation_id: str, *, tenant: str | None) -> usage.Tree | None:
        """The whole tree that a conversation belongs to; None when the tenant has no such one."""

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
        """The runs that match (`RunFilter.summed`), by one of GROUPS or `tag:NAME`, the costliest
        first. Raises: ValueError for another `by`."""
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
