"""The run log in memory."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Iterable
from dataclasses import replace

from gateway.stores.health import of_runs
from gateway.stores.memory.tables import Tables
from gateway.stores.paging import all_runs, all_traces
from gateway.stores.queries import (
    SORT_KEYS,
    ConversationPage,
    ConversationSummary,
    Facets,
    HealthSummary,
    PageRequest,
    PruneReport,
    RunFilter,
    RunPage,
    RunTrace,
    check_outcome,
    encode_cursor,
)
from gateway.stores.records import ConversationRecord
from gateway.stores.totals import RunRecord


class MemoryRunStore:
    """`RunStore` over Tables."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables

    async def list_runs(self, runs: RunFilter, page: PageRequest) -> RunPage:
        """See RunStore."""

        def place(run: RunRecord) -> tuple[float, str]:
            return SORT_KEYS[page.sort](run), run.id

        found = sorted(self._admitted(runs), key=place, reverse=page.descending)
        if (after := page.after()) is not None:
            found = [
                run
                for run in found
                if (place(run) < after if page.descending else place(run) > after)
            ]
        shown = tuple(found[: page.limit])
        more = len(found) > page.limit
        return RunPage(runs=shown, next_cursor=page.cursor_after(shown[-1]) if more else None)

    async def count_runs(self, runs: RunFilter) -> int:
        """See RunStore."""
        return len(self._admitted(runs))

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
        run = self._tables.runs.get(run_id)
        if run is None or tenant not in (None, run.record.tenant):
            return None
        last = math.inf if limit is None else after_step + limit
        steps = [s for index, s in sorted(run.steps.items()) if after_step < index <= last]
        if not content:
            steps = [replace(step, content=None) for step in steps]
        found = sorted(run.injections.items())
        injections = [row for at, row in found if after_step < at[0] <= last]
        return RunTrace(run=run.record, steps=tuple(steps), injections=tuple(injections))

    async def set_outcome(
        self, run_id: str, outcome: str, *, source: str, tenant: str | None
    ) -> bool:
        """See RunStore."""
        check_outcome(outcome)
        run = self._tables.runs.get(run_id)
        if run is None or tenant not in (None, run.record.tenant):
            return False
        run.record = replace(run.record, outcome=outcome, outcome_source=source)
        return True

    async def list_conversations(
        self,
        *,
        tenant: str | None,
        external_key: str | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> ConversationPage:
        """See RunStore."""
        after = PageRequest(limit=limit, cursor=cursor).after()
        found = [
            record
            for record in self._tables.conversations.values()
            if tenant in (None, record.tenant) and external_key in (None, record.external_key)
        ]
        found.sort(key=lambda record: (record.created_at, record.id), reverse=True)
        if after is not None:
            found = [record for record in found if (record.created_at, record.id) < after]
        shown = found[:limit]
        more = len(found) > limit
        return ConversationPage(
            conversations=tuple(map(self._conversation_summary, shown)),
            next_cursor=encode_cursor(shown[-1].created_at, shown[-1].id) if more else None,
        )

    async def facets(self, *, tenant: str | None) -> Facets:
        """See RunStore."""
        found = self._admitted(RunFilter(tenant=tenant))
        return Facets(
            agents=_distinct(run.agent for run in found),
            models=_distinct(name for run in found for name in run.totals.models),
            failure_types=_distinct(name for run in found for name in run.totals.failure_types),
            experiments=_distinct(run.experiment for run in found),
            arms=_distinct(run.arm for run in found),
        )

    async def health_summary(self, runs: RunFilter) -> HealthSummary:
        """See RunStore."""
        return of_runs(self._admitted(runs))

    async def experiment_runs(self, experiment: str, *, tenant: str | None) -> list[RunRecord]:
        """See RunStore."""
        wanted = RunFilter(tenant=tenant, experiment=experiment)
        return [run async for run in all_runs(self, wanted)]

    def export_runs(self, runs: RunFilter, *, content: bool = True) -> AsyncIterator[RunTrace]:
        """See RunStore."""
        return all_traces(self, runs, content=content)

    async def prune(
        self,
        *,
        older_than: float | None = None,
        max_bytes: int | None = None,
        active_since: float | None = None,
    ) -> PruneReport:
        """See RunStore; bytes are those of the records as JSON, about."""
        before, kept = (
            self._tables.used_bytes(),
            (len(self._tables.conversations), len(self._tables.runs)),
        )
        if older_than is not None:
            for run in [
                r.record for r in self._tables.runs.values() if r.record.updated_at < older_than
            ]:
                del self._tables.runs[run.id]
            self._tables.remove_conversations(
                c for c in self._by_use() if c.updated_at < older_than
            )
        if max_bytes is not None:
            for record in self._by_use():
                if self._tables.used_bytes() <= max_bytes:
                    break
                if active_since is None or record.updated_at < active_since:
                    self._tables.remove_conversations([record])
        return PruneReport(
            conversations=kept[0] - len(self._tables.conversations),
            runs=kept[1] - len(self._tables.runs),
            bytes_before=before,
            bytes_after=self._tables.used_bytes(),
        )

    def _admitted(self, runs: RunFilter) -> list[RunRecord]:
        return [run.record for run in self._tables.runs.values() if runs.admits(run.record)]

    def _conversation_summary(self, record: ConversationRecord) -> ConversationSummary:
        return ConversationSummary(
            id=record.id,
            tenant=record.tenant,
            source=record.source,
            parent_id=record.parent_id,
            external_key=record.external_key,
            version=record.version,
            created_at=record.created_at,
            updated_at=record.updated_at,
            message_count=record.message_count,
            runs=len(self._admitted(RunFilter(conversation_id=record.id))),
        )

    def _by_use(self) -> list[ConversationRecord]:
        return sorted(self._tables.conversations.values(), key=lambda record: record.updated_at)


def _distinct(values: Iterable[str | None]) -> tuple[str, ...]:
    return tuple(sorted({value for value in values if value}))
