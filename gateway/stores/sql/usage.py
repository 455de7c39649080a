"""The sums of calls by the hour, to which each commit adds.

Sums, because the steps of ten thousand runs are too many to read for one page; by the call and not
by the run, because one run may last for days. They stay when retention removes the runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from gateway.stores.records import IMPORTED, RunUpdate, StepRow
from gateway.stores.sql.engine import Connection, Dialect, Row, row_of
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
