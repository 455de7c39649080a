"""The run log in PostgreSQL: lists, traces, outcomes."""

# ruff: noqa: S608 - statements are put together from names of this package; values are bound

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from functools import partial

import asyncpg

from gateway.stores import codec
from gateway.stores.postgres import filters
from gateway.stores.postgres.database import Database
from gateway.stores.postgres.experiments import experiment_runs
from gateway.stores.postgres.facets import facets
from gateway.stores.postgres.health import summarize
from gateway.stores.postgres.live import live_runs
from gateway.stores.postgres.retention import prune
from gateway.stores.postgres.rows import injection_of, run_of, step_of
from gateway.stores.postgres.text import Arguments, read_text
from gateway.stores.postgres.usage import usage_of
from gateway.stores.protocols import exported
from gateway.stores.queries import (
    FACET_RUNS,
    HEALTH_RUNS,
    ConversationPage,
    ConversationSummary,
    Facets,
    HealthSummary,
    LiveQuery,
    LiveRun,
    PageRequest,
    PruneReport,
    RunFilter,
    RunPage,
    RunTrace,
    check_outcome,
    decode_cursor,
    encode_cursor,
)
from gateway.stores.redact import MAX_INT
from gateway.stores.totals import ExperimentRun
from gateway.stores.usage import UsagePoint, UsageQuery

_SORTS = {
    "started_at": "r.started_at",
    "updated_at": "r.updated_at",
    "steps": "r.steps::float8",
    "tokens": "(r.input_tokens + r.output_tokens)::float8",
    "cost": "coalesce(r.cost_usd, -1.0)",
    "peak": "r.composite_peak",
}
_STEPS = ", ".join(codec.STEP_COLUMNS)
_STEPS_WITHOUT_CONTENT = _STEPS.replace("content", "NULL")
_CONVERSATION = codec.names(ConversationSummary, "runs")
_MANY = 200
"""Runs that are made into records in a thread."""


class PostgresRunStore:
    """`RunStore` over a Database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def list_runs(self, runs: RunFilter, page: PageRequest) -> RunPage:
        """See RunStore."""
        values = Arguments()
        rows = await self._database.fetch(_list_sql(runs, page, page.after(), values), *values)
        listed, more = rows[: page.limit], len(rows) > page.limit
        if len(listed) > _MANY:  # a thousand take as long as ten requests
            found = await asyncio.to_thread(lambda: tuple(map(run_of, listed)))
        else:
            found = tuple(map(run_of, listed))
        return RunPage(runs=found, next_cursor=page.cursor_after(found[-1]) if more else None)

    async def count_runs(self, runs: RunFilter) -> int:
        """See RunStore."""

        values = Arguments()
        sql = f"SELECT count(*) FROM runs AS r WHERE {filters.where(runs, values)}"
        ((number,),) = await self._database.fetch(sql, *values)
        return int(number)

    async def get_run(
        self,
        run_id: str,
        *,
        tenant: str | None,
        content: bool = True,
        after_step: int = -1,
        limit: int | None = None,
    ) -> RunTrace | None:
        """See RunStore."""
        last = MAX_INT if limit is None else min(MAX_INT, after_step + limit)
        window = (max(after_step, -1), last)
        return await self._database.view(partial(_get_run, run_id, tenant, content, window))

    async def set_outcome(
        self, run_id: str, outcome: str, *, source: str, tenant: str | None
    ) -> bool:
        """See RunStore."""
        check_outcome(outcome)
        values = Arguments()
        changes = f"outcome = {values.add(outcome)}, outcome_source = {values.add(source)}"
        wanted = f"r.id = {values.add(run_id)}"
        condition = filters.where(RunFilter(tenant=tenant), values)
        sql = f"UPDATE runs AS r SET {changes} WHERE {wanted} AND {condition} RETURNING TRUE"

        return bool(await self._database.fetch(sql, *values))

    async def list_conversations(
        self,
        *,
        tenant: str | None,
        external_key: str | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> ConversationPage:
        """See RunStore."""
        page = PageRequest(limit=limit, cursor=cursor)
        after = None if cursor is None else decode_cursor(cursor)
        work = partial(_list_conversations, tenant, external_key, page, after)
        return await self._database.run(work)

    async def facets(self, *, tenant: str | None, newest: int = FACET_RUNS) -> Facets:
        """See RunStore."""
        return await self._database.run(partial(facets, RunFilter(tenant=tenant), newest))

    async def health_summary(self, runs: RunFilter, *, newest: int = HEALTH_RUNS) -> HealthSummary:
        """See RunStore."""
        return await self._database.view(partial(summarize, runs, newest))

    async def live_runs(self, query: LiveQuery) -> tuple[LiveRun, ...]:
        """See RunStore."""
        return await self._database.view(partial(live_runs, query))

    async def usage(self, query: UsageQuery) -> list[UsagePoint]:
        """See RunStore."""
        return await self._database.view(partial(usage_of, query))

    async def experiment_runs(self, experiment: str, *, tenant: str | None) -> list[ExperimentRun]:
        """See RunStore."""
        return await experiment_runs(self._database, experiment, tenant)

    def export_runs(self, runs: RunFilter, *, content: bool = True) -> AsyncIterator[RunTrace]:
        """See RunStore."""
        return exported(self, runs, content=content)

    async def prune(
        self,
        *,
        older_than: float | None = None,
        max_bytes: int | None = None,
        active_since: float | None = None,
        keep: Sequence[str] = (),
    ) -> PruneReport:
        """See RunStore. One gateway does it for all that share the database; for the others there
        is nothing to remove. Sizes are those of what is stored, before compression and indexes."""
        return await prune(self._database, older_than, max_bytes, active_since, keep)


def _list_sql(
    runs: RunFilter, page: PageRequest, after: tuple[float, str] | None, values: Arguments
) -> str:
    condition = filters.where(runs, values)
    key, order = _SORTS[page.sort], "DESC" if page.descending else "ASC"
    if after is not None:
        sign = "<" if page.descending else ">"
        place = f"({values.add(float(after[0]))}, {values.add(after[1])})"
        condition += f" AND ({key}, r.id) {sign} {place}"
    listed = f"ORDER BY {key} {order}, r.id {order}"
    # The page first: whole rows, with their conversations, take three times as long to sort.
    return f"""
        SELECT {codec.RUN} FROM {codec.RUNS} WHERE r.pk IN (
            SELECT r.pk FROM runs AS r WHERE {condition} {listed} LIMIT {page.limit + 1}
        ) {listed}
    """


async def _get_run(
    run_id: str,
    tenant: str | None,
    content: bool,
    window: tuple[int, int],
    connection: asyncpg.Connection,
) -> RunTrace | None:
    values = Arguments()
    wanted = f"r.id = {values.add(run_id)}"
    condition = filters.where(RunFilter(tenant=tenant), values)
    sql = f"SELECT {codec.RUN}, r.pk FROM {codec.RUNS} WHERE {wanted} AND {condition}"
    found = await connection.fetchrow(sql, *values)
    if found is None:
        return None
    *row, pk = found
    some = "WHERE run_pk = $1 AND step_index > $2 AND step_index <= $3 ORDER BY step_index"
    columns = _STEPS if content else _STEPS_WITHOUT_CONTENT
    steps = await connection.fetch(f"SELECT {columns} FROM steps {some}", pk, *window)
    sql = f"SELECT {codec.INJECTIONS} FROM injections {some}, ordinal"
    injections = await connection.fetch(sql, pk, *window)
    return RunTrace(
        run=run_of(row),
        steps=tuple(step_of(run_id, step) for step in steps),
        injections=tuple(injection_of(run_id, injection) for injection in injections),
    )


async def _list_conversations(
    tenant: str | None,
    external_key: str | None,
    page: PageRequest,
    after: tuple[float, str] | None,
    connection: asyncpg.Connection,
) -> ConversationPage:
    values = Arguments()
    conditions = ["TRUE"]
    for name, value in (("tenant", tenant), ("external_key", external_key)):
        if value is not None:
            conditions.append(f"{name} = {values.add(value)}")
    if after is not None:
        place = f"({values.add(float(after[0]))}, {values.add(after[1])})"
        conditions.append(f"(created_at, id) < {place}")
    sql = f"""
        SELECT {", ".join(_CONVERSATION)},
            (SELECT count(*) FROM runs AS r WHERE r.conversation_pk = conversations.pk)
        FROM conversations WHERE {" AND ".join(conditions)}
        ORDER BY created_at DESC, id DESC LIMIT {page.limit + 1}
    """
    rows = await connection.fetch(sql, *values)
    found = tuple(
        ConversationSummary(**dict(zip((*_CONVERSATION, "runs"), map(read_text, row), strict=True)))
        for row in rows[: page.limit]
    )
    more = len(rows) > page.limit
    last = encode_cursor(found[-1].created_at, found[-1].id) if more else None
    return ConversationPage(conversations=found, next_cursor=last)
