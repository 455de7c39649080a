"""Calls summed by the hour when they are committed, and the queries over these sums.

Sums, because the steps of ten thousand runs are too many to read for one page; by the call and not
by the run, because one run may last for days. They stay when retention removes the runs.
"""

# ruff: noqa: S608 - statements are put together from names of this package; values are bound

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import apsw

from gateway.stores.records import RunUpdate, StepRow
from gateway.stores.usage import AMOUNTS, SUMS, UsagePoint, UsageQuery, bucket_sql, merged, tag_of

_KEY = ("hour", "tenant", "agent", "model", "tags")
_NAMES = (*SUMS, "cost_usd", *AMOUNTS)
_COLUMNS = (*_KEY, *_NAMES)
_ADD = f"""
INSERT INTO usage_by_hour ({", ".join(_COLUMNS)}) VALUES ({", ".join("?" * len(_COLUMNS))})
ON CONFLICT ({", ".join(_KEY)}) DO UPDATE SET
    {", ".join(f"{n} = usage_by_hour.{n} + excluded.{n}" for n in (*SUMS, *AMOUNTS))},
    cost_usd = CASE WHEN excluded.cost_usd IS NULL THEN usage_by_hour.cost_usd
        ELSE coalesce(usage_by_hour.cost_usd, 0.0) + excluded.cost_usd END
"""
_BY = {"model": ("model", "model_requested"), "agent": ("agent",) * 2, "tenant": ("tenant",) * 2}
_TAG = "coalesce((SELECT value FROM json_each({}tags) WHERE key = ?), '')"
_STARTED_HOUR = "(CAST(r.started_at AS INTEGER) / 3600 * 3600)"


def add_usage(
    tenant: str,
    run: RunUpdate,
    fresh: Sequence[StepRow],
    called: Sequence[StepRow],
    tags: str,
    connection: apsw.Connection,
) -> None:
    """Add scored steps that are stored for the first time, and calls, to the sums.

    `tags`: of the run, as its column has them.
    """
    new, made = {id(step) for step in fresh}, {id(step) for step in called}
    silent: dict[int, list[bool]] = {}
    for step in {id(step): step for step in (*fresh, *called)}.values():
        is_new = step.composite is not None and id(step) in new
        call = step.call if id(step) in made else None
        hour = int(step.at) // 3600 * 3600
        if call is not None:
            tokens = (call.input_tokens or 0, call.cached_tokens or 0, call.output_tokens or 0)
            how = (call.failed, bool(call.unsteered), call.unpriced)
            *guessed, guessed_usd = call.estimated
            amounts = (call.cost_usd, call.latency_s, guessed_usd)
            counts = (int(is_new), int(is_new and bool(step.fired)))
            values = (1, *how, *counts, *tokens, *guessed, *amounts)
            key = (hour, tenant, run.agent, call.model_asked, tags)
            connection.execute(_ADD, (*key, *values))
        elif is_new:
            silent.setdefault(hour, []).append(bool(step.fired))
    # The steps of a history that is seen for the first time: one row for all of them.
    for hour, fired in silent.items():
        none = (0, 0, 0, 0, len(fired), sum(fired), 0, 0, 0, 0, 0, None, 0.0, 0.0)
        connection.execute(_ADD, (hour, tenant, run.agent, run.model_requested, tags, *none))


def usage_of(query: UsageQuery, connection: apsw.Connection) -> list[UsagePoint]:
    """See RunStore.usage."""
    column, of_runs, named = _columns(query)
    start = bucket_sql("hour", query.bucket)
    sums = ", ".join(f"sum({name})" for name in _NAMES)
    where, values = _where(query, "", "hour", "model")
    sql = (
        f"SELECT {start} AS start, {column}, {sums} FROM usage_by_hour WHERE {where} GROUP BY 1, 2"
    )
    usage = {
        (row[0], row[1]): dict(zip(_NAMES, row[2:], strict=True))
        for row in connection.execute(sql, (*named, *values))
    }
    where, values = _where(query, "r.", "started_at", "model_requested")
    sql = f"""
        SELECT {bucket_sql(_STARTED_HOUR, query.bucket)} AS start, {of_runs}, count(*),
            coalesce(sum(r.outcome = 'success'), 0), coalesce(sum(r.outcome = 'failure'), 0)
        FROM runs AS r WHERE {where} GROUP BY 1, 2
    """
    outcomes = {
        (row[0], row[1]): dict(zip(("runs", "successes", "failures"), row[2:], strict=True))
        for row in connection.execute(sql, (*named, *values))
    }
    return merged(usage, outcomes)


def _columns(query: UsageQuery) -> tuple[str, str, list[str]]:
    """What calls and runs are told apart by, as SQL, and the values bound in it."""
    if query.by is None:
        return "''", "''", []
    if tag := tag_of(query.by):
        return _TAG.format(""), _TAG.format("r."), [tag]
    of_calls, of_runs = _BY[query.by]
    return of_calls, f"r.{of_runs}", []


def _where(query: UsageQuery, table: str, time: str, model: str) -> tuple[str, list[Any]]:
    conditions, values = [f"{table}{time} >= ?", f"{table}{time} < ?"], [query.since, query.until]
    chosen = (("tenant", query.tenant), (model, query.model), ("agent", query.agent))
    for name, value in chosen:
        if value is not None:
            conditions.append(f"{table}{name} = ?")
            values.append(value)  # type: ignore[arg-type]
    return " AND ".join(conditions), values
