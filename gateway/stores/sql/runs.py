"""The run log: lists, traces, outcomes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import Any

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
from gateway.stores.sql import filters
from gateway.stores.sql.engine import Connection, Engine, columns
from gateway.stores.sql.health import summarize
from gateway.stores.sql.live import live_runs
from gateway.stores.sql.retention import prune
from gateway.stores.sql.usage import usage_of
from gateway.stores.totals import AT_ONCE, COLUMNS, ExperimentRun, RunRecord, experiment_run_of
from gateway.stores.usage import UsagePoint, UsageQuery

# A cursor has a fraction, which whole numbers are not compared with.
_SORTS = {
    "started_at": "r.started_at",
    "updated_at": "r.updated_at",
    "steps": "CAST(r.steps AS DOUBLE PRECISION)",
    "tokens": "CAST(r.input_tokens + r.output_tokens AS DOUBLE PRECISION)",
    "cost": "coalesce(r.cost_usd, -1.0)",
    "peak": "r.composite_peak",
}
_STEPS = ", ".join(codec.STEP_COLUMNS)
_STEPS_WITHOUT_CONTENT = ", ".join(
    ["NULL" if name == "content" else name for name in codec.STEP_COLUMNS]
)
_WINDOW = "WHERE run_pk = :pk AND step_index > :after AND step_index <= :last ORDER BY step_index"
_CONVERSATION = codec.names(ConversationSummary, "runs")


class SQLRunStore:
    """`RunStore` over an engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._dialect = engine.dialect

    async def list_runs(self, runs: RunFilter, page: PageRequest) -> RunPage:
        sql, values = self._list(runs, page)

        async def work(connection: Connection) -> list[RunRecord]:
            return await connection.made(codec.run_of, await connection.fetch(sql, **values))

        found = await self._engine.read(work)
        listed, more = tuple(found[: page.limit]), len(found) > page.limit
        return RunPage(runs=listed, next_cursor=page.cursor_after(listed[-1]) if more else None)

    def _list(self, runs: RunFilter, page: PageRequest) -> tuple[str, dict[str, Any]]:
        """The statement of a page and the first run of the next, and its values."""
        values: dict[str, Any] = {}
        condition = filters.where(runs, values, self._dialect)
        key, order = _SORTS[page.sort], "DESC" if page.descending else "ASC"
        if (after := page.after()) is not None:
            values["after"], values["after_id"] = float(after[0]), after[1]
            sign = "<" if page.descending else ">"
            condition += f" AND ({key}, r.id) {sign} (:after, :after_id)"
        listed = f"ORDER BY {key} {order}, r.id {order}"
        # The page first: rows of all columns, with their conversations, take longer to sort.
        sql = f"""
            SELECT {codec.RUN} FROM {codec.RUNS} WHERE r.pk IN (
                SELECT r.pk FROM runs AS r WHERE {condition} {listed} LIMIT {page.limit + 1}
            ) {listed}
        """
        return sql, values

    async def count_runs(self, runs: RunFilter) -> int:
        values: dict[str, Any] = {}
        condition = filters.where(runs, values, self._dialect)
        rows = await self._engine.fetch(
            f"SELECT count(*) FROM runs AS r WHERE {condition}", **values
        )
        return int(rows[0][0])

    async def get_run(
        self,
        run_id: str,
        *,
        tenant: str | None,
        content: bool = True,
        after_step: int = -1,
        limit: int | None = None,
    ) -> RunTrace | None:
        values: dict[str, Any] = {"id": run_id}
        condition = filters.where(RunFilter(tenant=tenant), values, self._dialect)
        run = f"SELECT {codec.RUN}, r.pk FROM {codec.RUNS} WHERE r.id = :id AND {condition}"
        steps = f"SELECT {_STEPS if content else _STEPS_WITHOUT_CONTENT} FROM steps {_WINDOW}"
        injections = f"SELECT {codec.INJECTIONS} FROM injections {_WINDOW}, ordinal"
        last = MAX_INT if limit is None else min(MAX_INT, after_step + limit)

        async def work(connection: Connection) -> RunTrace | None:
            found = await connection.row(run, **values)
            if found is None:
                return None
            *row, pk = found
            part = {"pk": pk, "after": max(after_step, -1), "last": last}
            step_rows = await connection.fetch(steps, **part)
            injected = await connection.fetch(injections, **part)
            return RunTrace(
                run=codec.run_of(row),
                steps=tuple(await connection.made(partial(codec.step_of, run_id), step_rows)),
                injections=tuple([codec.injection_of(run_id, each) for each in injected]),
            )

        return await self._engine.view(work)

    async def set_outcome(
        self, run_id: str, outcome: str, *, source: str, tenant: str | None
    ) -> bool:
        check_outcome(outcome)
        values: dict[str, Any] = {"id": run_id, "new": outcome, "source": source}
        condition = filters.where(RunFilter(tenant=tenant), values, self._dialect)
        sql = f"""
            UPDATE runs AS r SET outcome = :new, outcome_source = :source
            WHERE r.id = :id AND {condition} RETURNING TRUE
        """
        return bool(await self._engine.write(sql, **values))

    async def list_conversations(
        self,
        *,
        tenant: str | None,
        external_key: str | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> ConversationPage:
        page = PageRequest(limit=limit, cursor=cursor)
        values: dict[str, Any] = {"tenant": tenant, "external_key": external_key}
        conditions = [f"{name} = :{name}" for name, value in values.items() if value is not None]
        if page.cursor is not None:
            at, values["after_id"] = decode_cursor(page.cursor)
            values["after"] = float(at)
            conditions.append("(created_at, id) < (:after, :after_id)")
        sql = f"""
            SELECT {columns(_CONVERSATION)},
                (SELECT count(*) FROM runs AS r WHERE r.conversation_pk = conversations.pk) AS runs
            FROM conversations WHERE {" AND ".join(["TRUE", *conditions])}
            ORDER BY created_at DESC, id DESC LIMIT {page.limit + 1}
        """
        rows = await self._engine.fetch(sql, **values)
        found = tuple(
            [
                ConversationSummary(**dict(zip((*_CONVERSATION, "runs"), row, strict=True)))
                for row in rows[: page.limit]
            ]
        )
        more = len(rows) > page.limit
        last = encode_cursor(found[-1].created_at, found[-1].id) if more else None
        return ConversationPage(conversations=found, next_cursor=last)

    async def facets(self, *, tenant: str | None, newest: int = FACET_RUNS) -> Facets:
        runs = RunFilter(tenant=tenant)
        return await self._engine.read(partial(filters.facets, runs, newest, self._dialect))

    async def health_summary(self, runs: RunFilter, *, newest: int = HEALTH_RUNS) -> HealthSummary:
        return await self._engine.view(partial(summarize, runs, newest, self._dialect))

    async def live_runs(self, query: LiveQuery) -> tuple[LiveRun, ...]:
        return await self._engine.view(partial(live_runs, query, self._dialect))

    async def usage(self, query: UsageQuery) -> list[UsagePoint]:
        return await self._engine.view(partial(usage_of, query, self._dialect))

    async def experiment_runs(self, experiment: str, *, tenant: str | None) -> list[ExperimentRun]:
        found: list[ExperimentRun] = []
        while True:
            sql, values = self._after(found[-1] if found else None, experiment, tenant)

            async def work(
                connection: Connection, sql: str = sql, values: dict[str, Any] = values
            ) -> list[ExperimentRun]:
                rows = await connection.fetch(sql, **values)
                return await connection.made(experiment_run_of, rows)

            more = await self._engine.read(work)
            found += more
            if len(more) < AT_ONCE:
                return found

    def _after(
        self, last: ExperimentRun | None, experiment: str, tenant: str | None
    ) -> tuple[str, dict[str, Any]]:
        """The statement for an experiment's next runs after `last`, oldest first; its values."""
        values: dict[str, Any] = {}
        wanted = RunFilter(tenant=tenant, experiment=experiment)
        condition = filters.where(wanted, values, self._dialect)
        if last is not None:
            values["after"], values["after_id"] = last.started_at, last.id
            condition += " AND (r.started_at, r.id) > (:after, :after_id)"
        sql = f"""
            SELECT {COLUMNS} FROM {codec.RUNS} WHERE {condition}
            ORDER BY r.started_at, r.id LIMIT {AT_ONCE}
        """
        return sql, values

    def export_runs(self, runs: RunFilter, *, content: bool = True) -> AsyncIterator[RunTrace]:
        return exported(self, runs, content=content)

    async def prune(
        self,
        *,
        older_than: float | None = None,
        max_bytes: int | None = None,
        active_since: float | None = None,
        keep: Sequence[str] = (),
    ) -> PruneReport:
        return await prune(self._engine, older_than, max_bytes, active_since, keep)
