"""What an id that an operator gives names: a run, or a conversation."""

from __future__ import annotations

from gateway.stores.protocols import RunStore
from gateway.stores.queries import PageRequest, RunFilter


async def known_subject(runs: RunStore, given: str, tenant: str | None) -> tuple[str, str] | None:
    """(id, tenant) of a run or conversation; None when the tenant has none of that id.

    Raises: StoreError.
    """
    run = await runs.get_run(given, tenant=tenant, content=False, limit=0)
    if run is not None:
        return run.run.id, run.run.tenant
    wanted = RunFilter(tenant=tenant, conversation_id=given)
    page = await runs.list_runs(wanted, PageRequest(limit=1))
    if page.runs:
        return given, page.runs[0].tenant
    return None
