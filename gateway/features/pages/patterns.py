"""Pages of the pattern library: search and read. `gateway patterns` and the API change it."""

from typing import Annotated
from urllib.parse import quote

from gateway.api import patterns
from gateway.api.params import OneOf, PageParameters, TenantParameter, Text, naming
from gateway.core.monitors import FAILURE_LABELS
from gateway.core.pattern import Tier, content
from gateway.features.pages.pages import Page, Visit, redirect
from gateway.steering.guidance.codec import to_line
from gateway.stores.patterns import PatternFilter


class ListParameters(PageParameters, TenantParameter):
    """Filter of patterns."""

    tier: Annotated[str, OneOf(patterns.TIERS)] | None = None  # None = any
    failure_type: Text | None = None  # label; None = any
    text: Text | None = None  # occurs in the fields, case ignored


async def show_list(visit: Visit) -> Page:
    """One page of patterns."""
    values = visit.values
    wanted = PatternFilter(
        tenant=visit.tenant,
        tier=Tier(values["tier"]) if values["tier"] else None,
        failure_type=values["failure_type"],
        text=values["text"],
        learned=False,
    )
    await patterns.counted(visit.runtime)
    with naming("cursor"):
        store = patterns.library(visit.runtime).store
        limit = values["limit"]
        page = await store.list_patterns(wanted, limit=limit, cursor=values["cursor"])
    shown = {
        "title": "Patterns",
        "rows": [(stored, content(stored.pattern.fields)) for stored in page.patterns],
        "count": await store.count(),
        "next": visit.query(cursor=page.next_cursor) if page.next_cursor else None,
        "chosen": values,
        "tiers": patterns.TIERS,
        "failure_types": FAILURE_LABELS,
    }
    return Page(template="patterns.html", values=shown)


async def show_one(visit: Visit) -> Page:
    """One pattern, and the command that changes it."""
    pattern_id = str(visit.scope["path_params"]["pattern_id"])
    stored = await patterns.find_pattern(visit.runtime, visit.tenant, pattern_id)
    if stored.pattern.lesson is not None:
        return redirect(f"/dashboard/lessons/{quote(pattern_id)}{visit.query()}")
    line = to_line(stored.pattern)
    values = {"title": pattern_id, "stored": stored, "pattern": stored.pattern, "line": line}
    return Page(template="pattern.html", values=values)
