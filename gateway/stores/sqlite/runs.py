"""The run log in SQLite: lists, traces, outcomes."""

# ruff: noqa: S608 - statements are put together from names of this package; values are bound

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import Any

import apsw

from gateway.stores import codec
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
from gateway.stores.sqlite import filters
from gateway.stores.sqlite.connection import one_view
from gateway.stores.sqlite.database import Database
from gateway.stores.sqlite.experiments import experiment_runs
from gateway.stores.sqlite.facets import facets
from gateway.stores.sqlite.health import summarize
from gateway.stores.sqlite.live import live_runs
from gateway.stores.sqlite.retention import prune
from gateway.stores.sqlite.usage import usage_of
from gateway.stores.totals import ExperimentRun, RunRecord
from gateway.stores.usage import UsagePoint, UsageQuery

_SORTS = {
    "started_at": "r.started_at",
    "updated_at": "r.updated_at",
    "steps": "r.steps",
    "tokens": "r.input_tokens + r.output_tokens",
    "cost": "coalesce(r.cost_usd, -1.0)",
    "peak": "r.composite_peak",
}
_STEPS = ", ".join(codec.STEP_COLUMNS)
_STEPS_WITHOUT_CONTENT = _STEPS.replace("content", "NULL")
_CONVERSATION = codec.names(ConversationSummary, "runs")


class SQLiteRunStore:
    """`RunStore` over a Database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def list_runs(self, runs: RunFilter, page: PageRequest) -> RunPage:
        """See RunStore."""
        after = page.after()
        found = await self._database.read(partial(_list_runs, runs, page, after))
        listed, more = tuple(found[: page.limit]), len(found) > page.limit
        return RunPage(runs=listed, next_cursor=page.cursor_after(listed[-1]) if more else None)

    async def count_runs(self, runs: RunFilter) -> int:
        """See RunStore."""
        return await self._database.read(partial(_count_runs, runs))

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
        window = (after_step, MAX_INT if limit is None else after_step + limit)
        read = partial(_get_run, run_id, tenant, content, window)
        return await self._database.read(one_view(read))

    async def set_outcome(
        self, run_id: str, outcome: str, *, source: str, tenant: str | None
    ) -> bool:
        """See RunStore."""
        check_outcome(outcome)
        return await self._database.write(partial(_set_outcome, run_id, outcome, source, tenant))

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
        return await self._database.read(partial(_list_conversations, tenant, external_key, page))

    async def facets(self, *, tenant: str | None, newest: int = FACET_RUNS) -> Facets:
        """See RunStore."""
        return await self._database.read(partial(facets, RunFilter(tenant=tenant), newest))

    async def health_summary(self, runs: RunFilter, *, newest: int = HEALTH_RUNS) -> HealthSummary:
        """See RunStore."""
        return await self._database.read(one_view(partial(summarize, runs, newest)))

    async def live_runs(self, query: LiveQuery) -> tuple[LiveRun, ...]:
        """See RunStore."""
        return await self._database.read(one_view(partial(live_runs, query)))

    async def usage(self, query: UsageQuery) -> list[UsagePoint]:
        """See RunStore."""
        return await self._database.read(one_view(partial(usage_of, query)))

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
        """See RunStore. Freed space is reused; the file itself does not shrink."""
        return await prune(self._database, older_than, max_bytes, active_since, keep)


def _list_runs(
    runs: RunFilter,
    page: PageRequest,
    after: tuple[float, str] | None,
    connection: apsw.Connection,
) -> list[RunRecord]:
    """The runs of a page, and the first one of the next."""
    condition, values = filters.where(runs)
    key, order = _SORTS[page.sort], "DESC" if page.descending else "ASC"
    if after is not None:
        condition += f" AND ({key}, r.id) {'<' if page.descending else '>'} (?, ?)"
        values.extend(after)
    listed = f"ORDER BY {key} {order}, r.id {order}"
    # The page first: rows of all columns, with their conversations, take longer to sort.
    sql = f"""
        SELECT {codec.RUN} FROM {codec.RUNS} WHERE r.pk IN (
            SELECT r.pk FROM runs AS r WHERE {condition} {listed} LIMIT ?
        ) {listed}
    """
    # Made into records here, in the thread that reads: a thousand take as long as ten requests.
    return [codec.run_of(row) for row in connection.execute(sql, (*values, page.limit + 1))]


def _count_runs(runs: RunFilter, connection: apsw.Connection) -> int:
    condition, values = filters.where(runs)
    sql = f"SELECT count(*) FROM runs AS r WHERE {condition}"
    return connection.execute(sql, values).get  # type: ignore[no-any-return]


def _get_run(
    run_id: str,
    tenant: str | None,
    content: bool,
    window: tuple[int, int],
    connection: apsw.Connection,
) -> RunTrace | None:
    condition, values = filters.where(RunFilter(tenant=tenant))
    sql = f"SELECT {codec.RUN}, r.pk FROM {codec.RUNS} WHERE r.id = ? AND {condition}"
    rows = connection.execute(sql, (run_id, *values)).fetchall()
    if not rows:
        return None
    *row, pk = rows[0]
    some = "WHERE run_pk = ? AND step_index > ? AND step_index <= ? ORDER BY step_index"
    columns = _STEPS if content else _STEPS_WITHOUT_CONTENT
    steps = connection.execute(f"SELECT {columns} FROM steps {some}", (pk, *window))
    trace_steps = tuple(codec.step_of(run_id, step) for step in steps)
    sql = f"SELECT {codec.INJECTIONS} FROM injections {some}, ordinal"
    injections = connection.execute(sql, (pk, *window))
    return RunTrace(
        run=codec.run_of(row),
        steps=trace_steps,
        injections=tuple(codec.injection_of(run_id, injection) for injection in injections),
    )


def _set_outcome(
    run_id: str, outcome: str, source: str, tenant: str | None, connection: apsw.Connection
) -> bool:
    condition, values = filters.where(RunFilter(tenant=tenant))
    sql = f"UPDATE runs AS r SET outcome = ?, outcome_source = ? WHERE r.id = ? AND {condition}"
    connection.execute(sql, (outcome, source, run_id, *values))
    return connection.changes() > 0


def _list_conversations(
    tenant: str | None, external_key: str | None, page: PageRequest, connection: apsw.Connection
) -> ConversationPage:
    conditions, values = ["TRUE"], list[Any]()
    for name, value in (("tenant", tenant), ("external_key", external_key)):
        if value is not None:
            conditions.append(f"{name} = ?")
            values.append(value)
    if page.cursor is not None:
        conditions.append("(created_at, id) < (?, ?)")
        values.extend(decode_cursor(page.cursor))
    sql = f"""
        SELECT {", ".join(_CONVERSATION)},
            (SELECT count(*) FROM runs AS r WHERE r.conversation_pk = conversations.pk)
        FROM conversations WHERE {" AND ".join(conditions)}
        ORDER BY created_at DESC, id DESC LIMIT ?
    """
    rows: list[Any] = connection.execute(sql, (*values, page.limit + 1)).fetchall()
    found = tuple(
        ConversationSummary(**dict(zip((*_CONVERSATION, "runs"), row, strict=True)))
        for row in rows[: page.limit]
    )
    more = len(rows) > page.limit
    last = encode_cursor(found[-1].created_at, found[-1].id) if more else None
    return ConversationPage(conversations=found, next_cursor=last)
