"""Walks over the whole of a run list, page by page, through any RunStore."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import TYPE_CHECKING

from gateway.stores.queries import PageRequest, RunFilter, RunTrace
from gateway.stores.totals import RunRecord

if TYPE_CHECKING:
    from gateway.stores.base import RunStore

# Small enough that no page holds up the loop, or the write-ahead log, for long.
_PAGE = 200


async def all_runs(store: RunStore, runs: RunFilter) -> AsyncIterator[RunRecord]:
    """The runs admitted, oldest first; runs that begin meanwhile may come too."""
    page = PageRequest(limit=_PAGE, descending=False)
    while True:
        found = await store.list_runs(runs, page)
        for run in found.runs:
            yield run
        if found.next_cursor is None:
            return
        page = replace(page, cursor=found.next_cursor)


async def all_traces(store: RunStore, runs: RunFilter, *, content: bool) -> AsyncIterator[RunTrace]:
    """As `all_runs`, each with its steps; a run removed meanwhile is left out."""
    async for run in all_runs(store, runs):
        trace = await store.get_run(run.id, tenant=run.tenant, content=content)
        if trace is not None:
            yield trace
