"""Walks over a run log, which no kind of store does in a way of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace

from gateway.stores.protocols import RunStore
from gateway.stores.queries import PageRequest, RunFilter, RunTrace
from gateway.stores.totals import RunRecord

_EXPORT_PAGE = 200
"""Runs read at once by an export: few enough to delay neither other reads nor a checkpoint."""


async def oldest_first(store: RunStore, runs: RunFilter, at_once: int) -> AsyncIterator[RunRecord]:
    """The runs that match, oldest first, read `at_once` (1 to MAX_PAGE) at a time."""
    page = PageRequest(limit=at_once, descending=False)
    while True:
        found = await store.list_runs(runs, page)
        for run in found.runs:
            yield run
        if found.next_cursor is None:
            return
        page = replace(page, cursor=found.next_cursor)


async def exported(store: RunStore, runs: RunFilter, *, content: bool) -> AsyncIterator[RunTrace]:
    """See RunStore.export_runs. A run that is removed during the export is left out."""
    async for run in oldest_first(store, runs, _EXPORT_PAGE):
        trace = await store.get_run(run.id, tenant=run.tenant, content=content)
        if trace is not None:
            yield trace
