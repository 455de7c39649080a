"""The sums of calls by the hour, to which each commit adds.

Sums, because the steps of ten thousand runs are too many to read for one page; by the call and not
by the run, because one run may last for days. They stay when retention removes the runs.
"""

# ruff: noqa: S608 - statements are put together from names of this package; values are bound

from __future__ import annotations

from gateway.stores.sql.engine import Connection, Dialect
from gateway.stores.usage import AMOUNTS, SUMS, UsagePoint, UsageQuery, bucket_sql, merged, tag_of

_BY = {"model": ("model", "model_requested"), "agent": ("agent",) * 2, "tenant": ("tenant",) * 2}
_STARTED_HOUR = "(CAST(floor(r.started_at / 3600) AS BIGINT) * 3600)"
_AMOUNTS = ("cost_usd", *AMOUNTS)
_SUMMED = ", ".join(
    [
        *[f"CAST(sum(u.{name}) AS BIGINT)" for name in SUMS],
        *[f"sum(u.{name})" for name in _AMOUNTS],
    ]
)
_OUTCOMES = ("runs", "successes", "failures")


async def usage_of(query: UsageQuery, dialect: Dialect, connection: Connection) -> list[UsagePoint]:
    """See RunStore.usage."""
    values = {name: getattr(query, name) for name in ("since", "until", "tenant", "agent", "model")}
    values["by_tag"] = tag_of(query.by or "")
    sql = f"""
        SELECT {bucket_sql("u.hour", query.bucket)}, {_name(query, dialect, "u", 0)}, {_SUMMED}
        FROM usage_by_hour AS u WHERE {_where(query, "u", "hour", "model")} GROUP BY 1, 2
    """
    usage = {
        (row[0], row[1]): dict(zip((*SUMS, *_AMOUNTS), row[2:], strict=True))
        for row in await connection.fetch(sql, **values)
    }
    sql = f"""
        SELECT {bucket_sql(_STARTED_HOUR, query.bucket)}, {_name(query, dialect, "r", 1)},
            count(*), count(*) FILTER (WHERE r.outcome = 'success'),
            count(*) FILTER (WHERE r.outcome = 'failure')
        FROM runs AS r WHERE {_where(query, "r", "started_at", "model_requested")} GROUP BY 1, 2
    """
    outcomes = {
        (row[0], row[1]): dict(zip(_OUTCOMES, row[2:], strict=True))
        for row in await connection.fetch(sql, **values)
    }
    return merged(usage, outcomes)


def _name(query: UsageQuery, dialect: Dialect, table: str, which: int) -> str:
    """What calls (0) and runs (1) are grouped by, as SQL."""
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
    for column, name in (("tenant", "tenant"), (model, "model"), ("agent", "agent")):
        if getattr(query, name) is not None:
            conditions.append(f"{table}.{column} = :{name}")
    return " AND ".join(conditions)
