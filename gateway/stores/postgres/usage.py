"""The sums of calls by the hour in PostgreSQL; a commit adds to them (`statement`)."""

# ruff: noqa: S608 - statements are put together from names of this package; values are bound

from __future__ import annotations

import asyncpg

from gateway.stores.postgres.text import Arguments, read_text
from gateway.stores.usage import AMOUNTS, SUMS, UsagePoint, UsageQuery, bucket_sql, merged, tag_of

_BY = {"model": ("model", "model_requested"), "agent": ("agent",) * 2, "tenant": ("tenant",) * 2}
_STARTED_HOUR = "(floor(r.started_at / 3600)::bigint * 3600)"
_NAMES = (*SUMS, "cost_usd", *AMOUNTS)
_SUMMED = ", ".join(
    [f"sum(u.{name})::bigint" if name in SUMS else f"sum(u.{name})" for name in _NAMES]
)
_OUTCOMES = ("runs", "successes", "failures")


async def usage_of(query: UsageQuery, connection: asyncpg.Connection) -> list[UsagePoint]:
    """See RunStore.usage."""
    values = Arguments()
    start, name = bucket_sql("u.hour", query.bucket), _name(query, values, "u", 0)
    sql = f"""
        SELECT {start}, {name}, {_SUMMED} FROM usage_by_hour AS u
        WHERE {_where(query, values, "u", "hour", "model")} GROUP BY 1, 2
    """
    usage = {
        (row[0], read_text(row[1])): dict(zip(_NAMES, row[2:], strict=True))
        for row in await connection.fetch(sql, *values)
    }
    values = Arguments()
    start = bucket_sql(_STARTED_HOUR, query.bucket)
    name = _name(query, values, "r", 1)
    sql = f"""
        SELECT {start}, {name}, count(*), count(*) FILTER (WHERE r.outcome = 'success'),
            count(*) FILTER (WHERE r.outcome = 'failure')
        FROM runs AS r WHERE {_where(query, values, "r", "started_at", "model_requested")}
        GROUP BY 1, 2
    """
    outcomes = {
        (row[0], read_text(row[1])): dict(zip(_OUTCOMES, row[2:], strict=True))
        for row in await connection.fetch(sql, *values)
    }
    return merged(usage, outcomes)


def _name(query: UsageQuery, values: Arguments, table: str, which: int) -> str:
    """What calls (0) and runs (1) are told apart by, as SQL."""
    if query.by is None:
        return "''"
    if tag := tag_of(query.by):
        return f"coalesce({table}.tags ->> {values.add(tag)}, '')"
    return f"{table}.{_BY[query.by][which]}"


def _where(query: UsageQuery, values: Arguments, table: str, time: str, model: str) -> str:
    since, until = values.add(float(query.since)), values.add(float(query.until))
    conditions = [f"{table}.{time} >= {since}::float8", f"{table}.{time} < {until}::float8"]
    for name, value in (("tenant", query.tenant), (model, query.model), ("agent", query.agent)):
        if value is not None:
            conditions.append(f"{table}.{name} = {values.add(value)}")
    return " AND ".join(conditions)
