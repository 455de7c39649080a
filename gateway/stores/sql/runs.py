"""The run log: lists, traces, outcomes, health, and the runs under way."""

from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from math import inf, nextafter

from msgspec import structs

from gateway.stores.codec import (
    EXPERIMENT_RUN,
    INJECTIONS,
    RUN,
    RUNS,
    SESSION,
    STEP_COLUMNS,
    experiment_run_of,
    injection_of,
    names,
    run_of,
    step_of,
)
from gateway.stores.filters import FACET_RUNS, OUTCOMES, Facets, RunFilter
from gateway.stores.health import (
    COSTS,
    HEALTH_RUNS,
    RECENT_RUNS,
    SPREAD_RUNS,
    SUMMED,
    HealthSummary,
    add_up,
    agent_health,
    ratio,
    recent_run,
    rounded,
    spread,
)
from gateway.stores.lists import (
    ConversationPage,
    ConversationSummary,
    NewestRuns,
    PageRequest,
    RunPage,
    decode_cursor,
    encode_cursor,
)
from gateway.stores.protocols import PruneReport, StoreError
from gateway.stores.records import IMPORTED
from gateway.stores.redact import MAX_INT
from gateway.stores.severity import WARN_COMPOSITE, by_word
from gateway.stores.sql.engine import (
    STEPS_AT_ONCE,
    Connection,
    Engine,
    Row,
    SqlForms,
    columns,
    conditions,
    record_of,
)
from gateway.stores.sql.retention import Removal
from gateway.stores.sql.under_way import STEPS_WITHOUT_CONTENT, live_runs
from gateway.stores.sql.usage import facets, usage_of, where
from gateway.stores.totals import AT_ONCE, ExperimentRun
from gateway.stores.traces import RunTrace
from gateway.stores.under_way import LiveQuery, LiveRun
from gateway.stores.usage import UsagePoint, UsageQuery
from gateway.values import FieldDict, Fields, by_name

_ENDED = f"CASE WHEN r.mode = '{IMPORTED}' THEN r.ended_at END"
LAST = f"coalesce({_ENDED}, r.updated_at)"
_DURATION = f"CASE WHEN {LAST} > r.started_at THEN {LAST} - r.started_at ELSE 0.0 END"
# A cursor has a fraction, which whole numbers are not compared with.
SORTS = {
    "started_at": "r.started_at",
    "updated_at": "r.updated_at",
    "duration": _DURATION,
    "steps": "CAST(r.steps AS DOUBLE PRECISION)",
    "tokens": "CAST(r.input_tokens + r.output_tokens AS DOUBLE PRECISION)",
    "cost": "coalesce(r.cost_usd, -1.0)",
    "peak": "r.composite_peak",
}
_STEPS = ", ".join(STEP_COLUMNS)
_WINDOW = "WHERE run_pk = :pk AND step_index > :after AND step_index <= :last ORDER BY step_index"
_CONVERSATION = names(ConversationSummary, "runs")
_FLOATS = ("overhead_ms", "latency_s")
_EXPRESSIONS = {
    "total_runs": "count(*)",
    "total_steps": "CAST(coalesce(sum(r.steps), 0) AS BIGINT)",
    "success_runs": "count(*) FILTER (WHERE r.outcome = 'success')",
    "failure_runs": "count(*) FILTER (WHERE r.outcome = 'failure')",
    "runs_with_fires": "count(*) FILTER (WHERE r.counts -> 'fired' <> '{}')",
    "clean_runs": f"count(*) FILTER (WHERE r.composite_peak < {WARN_COMPOSITE})",
    "peak_composite": "coalesce(max(r.composite_peak), 0.0)",
    **{
        name: f"CAST(coalesce(sum(r.{name}), 0) AS BIGINT)"
        for name in SUMMED
        if name not in _FLOATS
    },
    **{name: f"coalesce(sum(r.{name}), 0)" for name in _FLOATS},
    # sum() of only unknown values is NULL: the cost stays unknown.
    **{name: f"sum(r.{name})" for name in COSTS},
    "composite_sum": "coalesce(sum(r.composite_sum), 0.0)",
    "scored_steps": "CAST(coalesce(sum(r.scored_steps), 0) AS BIGINT)",
}
# Runs read at once by an export: few enough to delay neither other reads nor a checkpoint.
_EXPORT_PAGE = 200
_BATCHES = 5  # of results that a search brings in before it looks: a second at most
_MEAN = "CASE WHEN r.scored_steps > 0 THEN r.composite_sum / r.scored_steps ELSE 0.0 END"


class RunStore:
    """The run log. `tenant` None means every tenant; every method may raise StoreError."""

    def __init__(self, engine: Engine):
        self._engine = engine
        self._forms = engine.forms

    async def list_runs(self, runs: RunFilter, page: PageRequest) -> RunPage:
        """One page of the runs that match. Raises: ValueError for an invalid cursor."""
        await self._before_search(runs)
        condition, values = where(runs, self._forms)
        key = SORTS[page.sort]
        order, sign = page.order
        if (after := page.after()) is not None:
            values |= {"after": float(after[0]), "after_id": after[1]}
            condition += f" AND ({key}, r.id) {sign} (:after, :after_id)"
        listed = f"ORDER BY {key} {order}, r.id {order}"
        # The page first: rows of all columns, with their conversations, take longer to sort.
        sql = f"""
            SELECT {RUN}, {key} FROM {RUNS} WHERE r.pk IN (
                SELECT r.pk FROM runs AS r WHERE {condition} {listed} LIMIT {page.limit + 1}
            ) {listed}
        """
        found = await self._engine.made(lambda row: (run_of(row[:-1]), row[-1]), sql, **values)
        last = None
        if len(found) > page.limit:
            run, place = found[page.limit - 1]
            last = encode_cursor(place, run.id)
        return RunPage(runs=tuple([run for run, _ in found[: page.limit]]), next_cursor=last)

    async def count_runs(self, runs: RunFilter) -> int:
        """Number of runs that match."""
        await self._before_search(runs)
        condition, values = where(runs, self._forms)
        return await self._engine.number(
            f"SELECT count(*) FROM runs AS r WHERE {condition}", **values
        )

    async def newest_runs(self, runs: RunFilter) -> NewestRuns:
        """The newest SPREAD_RUNS runs that match: their spread, and their sessions."""
        await self._before_search(runs)
        rows: Sequence[Row] = ()
        if runs.search:
            # What most runs have is found among the newest ones alone.
            newest = await self._newest(structs.replace(runs, search=None))
            if len(newest) == SPREAD_RUNS:
                since_then = structs.replace(runs, since=newest[-1][3])
                rows = await self._newest(since_then, min(row[5] for row in newest))
        every = False
        if len(rows) < SPREAD_RUNS // 4:
            rows = await self._newest(runs)
            every = len(rows) < SPREAD_RUNS
        return NewestRuns(
            spread=spread([row[:3] for row in rows]),
            sessions=tuple({row[4] for row in rows}),
            every=every,
            oldest=nextafter(rows[-1][3], inf) if rows else 0.0,
        )

    async def _newest(self, runs: RunFilter, first: int = 0) -> Sequence[Row]:
        condition, values = where(runs, self._forms, first)
        sql = f"""
            SELECT {_DURATION}, r.cost_usd, r.calls, r.started_at, {SESSION}, r.pk
            FROM {RUNS} WHERE {condition}
            ORDER BY r.started_at DESC, r.id DESC LIMIT {SPREAD_RUNS}
        """
        return await self._engine.fetch(sql, **values)

    async def index_results(self) -> bool:
        """Bring the results of some newest steps into what `RunFilter.search` finds; whether more
        are waiting. A search of runs brings in up to 1,000 steps by itself."""
        statement = self._engine.upkeep.index_results
        done = await self._engine.transact(lambda c: c.value(statement), patient=True)
        return bool(done == STEPS_AT_ONCE)

    async def _before_search(self, runs: RunFilter) -> None:
        """Bring in what is new. A database that cannot be written is searched as it is."""
        if not runs.search:
            return
        with suppress(StoreError):
            for _ in range(_BATCHES):
                if not await self.index_results():
                    return

    async def get_run(
        self,
        run_id: str,
        *,
        tenant: str | None,
        content: bool = True,
        after_step: int = -1,
        limit: int | None = None,
    ) -> RunTrace | None:
        """One run with its steps above `after_step`, up to `limit` of them; None when the tenant
        has no such run. `content` False: steps without their texts; the text of guidance is
        included."""
        condition, values = where(RunFilter(tenant=tenant), self._forms)
        run = f"SELECT {RUN}, r.pk FROM {RUNS} WHERE r.id = :id AND {condition}"
        steps = f"SELECT {_STEPS if content else STEPS_WITHOUT_CONTENT} FROM steps {_WINDOW}"
        injections = f"SELECT {INJECTIONS} FROM injections {_WINDOW}, ordinal"
        if limit is None:
            last = MAX_INT
        else:
            last = min(MAX_INT, after_step + limit)

        async def work(connection: Connection) -> RunTrace | None:
            found = await connection.row(run, id=run_id, **values)
            if found is None:
                return None
            *row, pk = found
            part = {"pk": pk, "after": max(after_step, -1), "last": last}
            step_rows = await connection.fetch(steps, **part)
            injected = await connection.fetch(injections, **part)
            return RunTrace(
                run=run_of(row),
                steps=tuple(await connection.made(partial(step_of, run_id), step_rows)),
                injections=tuple([injection_of(run_id, each) for each in injected]),
            )

        return await self._engine.view(work)

    async def set_outcome(
        self, run_id: str, outcome: str, *, source: str, tenant: str | None
    ) -> bool:
        """Set success, failure or other; False when the tenant has no run of that id. Raises:
        ValueError for another outcome."""
        if outcome not in OUTCOMES:
            known = ", ".join(OUTCOMES)
            raise ValueError(f"outcome: must be one of {known}, not {outcome!r}")
        condition, values = where(RunFilter(tenant=tenant), self._forms)
        values |= {"id": run_id, "new": outcome, "source": source}
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
        """One page of conversations, newest first. Raises: ValueError for an invalid cursor."""
        page = PageRequest(limit=limit, cursor=cursor)
        at: float | None = None
        values: FieldDict = {"after_id": None}
        if page.cursor is not None:
            at, values["after_id"] = decode_cursor(page.cursor)
        wanted = {
            "tenant": ("tenant = :tenant", tenant),
            "external_key": ("external_key = :external_key", external_key),
            "after": ("(created_at, id) < (:after, :after_id)", None if at is None else float(at)),
        }
        sql = f"""
            SELECT {columns(_CONVERSATION)},
                (SELECT count(*) FROM runs AS r WHERE r.conversation_pk = conversations.pk) AS runs
            FROM conversations WHERE version > 0 AND {conditions(wanted, values)}
            ORDER BY created_at DESC, id DESC LIMIT {page.limit + 1}
        """
        rows = await self._engine.fetch(sql, **values)
        shown = (*_CONVERSATION, "runs")
        found = tuple(map(record_of(ConversationSummary, shown), rows[: page.limit]))
        more = len(rows) > page.limit
        last = None
        if more:
            last = encode_cursor(found[-1].created_at, found[-1].id)
        return ConversationPage(conversations=found, next_cursor=last)

    async def facets(self, *, tenant: str | None, newest: int = FACET_RUNS) -> Facets:
        """Values that occur in the `newest` runs, and all experiments."""
        runs = RunFilter(tenant=tenant)
        return await self._engine.read(partial(facets, runs, newest, self._forms))

    async def health_summary(self, runs: RunFilter, *, newest: int = HEALTH_RUNS) -> HealthSummary:
        """The health of the `newest` runs that match, as one summary; see `RunFilter.summed`."""
        return await self._engine.view(partial(_summarize, runs.summed, newest, self._forms))

    async def live_runs(self, query: LiveQuery) -> tuple[LiveRun, ...]:
        """The runs that have neither ended nor an outcome, that of the newest call first."""
        return await self._engine.view(partial(live_runs, query, self._forms))

    async def usage(self, query: UsageQuery) -> list[UsagePoint]:
        """Calls and runs summed by time, in order of time and name, without empty buckets and
        imported runs. Raises: ValueError for a dimension that the store keeps no sums of."""
        return await self._engine.view(partial(usage_of, query, self._forms))

    async def experiment_runs(
        self,
        experiment: str | None,
        *,
        tenant: str | None,
        since: float | None = None,
        until: float | None = None,
    ) -> list[ExperimentRun]:
        """The live runs of an experiment, or of all (None), begun from `since` on and before
        `until`, oldest first."""
        wanted = RunFilter(tenant=tenant, experiment=experiment, since=since, until=until)
        condition, values = where(wanted.summed, self._forms)
        found: list[ExperimentRun] = []
        after = "TRUE"
        while True:
            sql = f"""
                SELECT {EXPERIMENT_RUN} FROM {RUNS} WHERE {condition} AND {after}
                ORDER BY r.started_at, r.id LIMIT {AT_ONCE}
            """
            more = await self._engine.made(experiment_run_of, sql, **values)
            found += more
            if len(more) < AT_ONCE:
                return found
            after = "(r.started_at, r.id) > (:after, :after_id)"
            values |= {"after": found[-1].started_at, "after_id": found[-1].id}

    async def export_runs(
        self, runs: RunFilter, *, content: bool = True
    ) -> AsyncIterator[RunTrace]:
        """The runs that match with their steps, oldest first, read a few at a time. A run that is
        removed during the export is left out."""
        page = PageRequest(limit=_EXPORT_PAGE, descending=False)
        while True:
            found = await self.list_runs(runs, page)
            for run in found.runs:
                trace = await self.get_run(run.id, tenant=run.tenant, content=content)
                if trace is not None:
                    yield trace
            if found.next_cursor is None:
                return
            page = replace(page, cursor=found.next_cursor)

    async def prune(
        self,
        *,
        older_than: float | None = None,
        max_bytes: float = inf,
        active_since: float = inf,
        keep: Sequence[str] = (),
    ) -> PruneReport:
        """Remove runs and conversations last updated before `older_than` (seconds since the epoch),
        then the least recently updated ones until at most `max_bytes` are in use, except those
        updated since `active_since`. Conversations in `keep`, and their runs, stay."""
        # The rows to remove are selected by reads, which delay no commit; each transaction removes
        # one batch.
        engine = self._engine
        before = await engine.number(engine.upkeep.used)
        if not await engine.upkeep.begin():
            return PruneReport(conversations=0, runs=0, bytes_before=before, bytes_after=before)
        by_id = f"SELECT pk FROM conversations WHERE {engine.forms.among('id', 'keep', 'text')}"
        kept = [pk for (pk,) in await engine.fetch(by_id, keep=list(keep))]
        work = Removal(engine, kept)
        if older_than is not None:
            await work.remove_old(older_than)
        limit = min(engine.upkeep.room, max_bytes)
        if limit < inf:
            await work.make_room(limit, active_since)
        await engine.upkeep.remove_heads(work.conversations)
        return PruneReport(
            conversations=work.conversations,
            runs=work.runs,
            bytes_before=before,
            bytes_after=await engine.number(engine.upkeep.used),
        )


# The counters of runs that a summary has under their own names.
_COUNTED = (
    "severity",
    "failure_types",
    "models",
    "unsteered",
    "estimated",
    "guidance",
    "lost_tokens",
    "lost_usd",
)


async def _summarize(
    runs: RunFilter, newest: int, forms: SqlForms, connection: Connection
) -> HealthSummary:
    """The summary of the newest runs that match."""
    condition, values = where(runs, forms)
    fetch = partial(connection.fetch, **values)
    newest_first = "ORDER BY r.started_at DESC, r.id DESC LIMIT"
    within = f"(SELECT * FROM runs AS r WHERE {condition} {newest_first} {newest}) AS r"
    (row,) = await fetch(f"SELECT {', '.join(_EXPRESSIONS.values())} FROM {within}")
    sums = by_name(_EXPRESSIONS, row)
    counted = await fetch(f"SELECT r.composite_peak, r.counts FROM {within}")
    by_agent = await fetch(f"""
        SELECT r.agent, count(*), avg({_MEAN}), max(r.composite_peak)
        FROM {within} GROUP BY r.agent ORDER BY count(*) DESC, r.agent
    """)
    recent = await fetch(f"""
        SELECT r.id, r.started_at, r.steps, {_MEAN}, r.composite_peak, r.counts
        FROM runs AS r WHERE {condition} {newest_first} {RECENT_RUNS}
    """)
    more = f"SELECT TRUE FROM runs AS r WHERE {condition} LIMIT 1 OFFSET {newest}"
    mean = ratio(sums.pop("composite_sum"), sums.pop("scored_steps"))
    found = await connection.computed(add_up, counted)
    counters: Fields = found.counters
    return HealthSummary(
        **{**sums, "peak_composite": rounded(sums["peak_composite"])},
        **{name: counters.get(name, {}) for name in _COUNTED},
        clean_run_rate=ratio(sums["clean_runs"], sums["total_runs"]),
        mean_composite=mean,
        cached_share=ratio(sums["cached_tokens"], sums["input_tokens"]),
        fires=counters.get("fired", {}),
        states={name: n for name, n in counters.get("states", {}).items() if n},
        steps_by_severity=by_word(counters.get("severity", {})),
        runs_by_severity=by_word(found.severity_runs),
        severity_runs=found.severity_runs,
        by_agent=tuple([agent_health(*row) for row in by_agent]),
        recent=tuple([recent_run(*row) for row in reversed(recent)]),
        limited=sums["total_runs"] == newest and bool(await fetch(more)),
    )
