"""Views of the list of runs that people saved, by name: the form on the list."""

import time
from secrets import token_hex
from typing import Annotated

from pydantic import AfterValidator, BaseModel, Field, StringConstraints

from gateway.api.params import (
    RunFilters,
    SortParameters,
    read_model,
    read_parameters,
)
from gateway.errors import NotFound
from gateway.features.pages.kept_views import SavedView, ViewStore
from gateway.features.pages.pages import Page, Visit, redirect


class _Query(SortParameters, RunFilters):
    """The filters and the order that a view may have."""


def _checked(query: str) -> str:
    """A query that the list of runs takes. Raises: BadRequest."""
    read_parameters(_Query, query.encode())
    return query


class NewView(BaseModel):
    """A view that is to be saved."""

    id: Annotated[str, Field(max_length=40)] = ""  # of the view to replace; "": a new one
    # 1 to 60 characters, blanks at the ends removed
    name: Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=60)]
    # as in the address of the list of runs, such as `severity=in-trouble&period=week`
    query: Annotated[str, Field(max_length=2000), AfterValidator(_checked)]


async def change(visit: Visit) -> Page:
    """Save, rename or remove a view by the form of the list, and show the list with it."""
    form = visit.form
    given = {name: form.get(name, "") for name in ("id", "name", "query")}
    store = visit.runtime.opened.stores.of(ViewStore)
    if store is None:
        raise NotFound("this gateway's store keeps no views")
    if form.get("action") != "remove":
        new = read_model(NewView, given)
        view = SavedView(
            id=new.id or f"view-{token_hex(6)}",
            tenant=visit.tenant or "",
            author=visit.access.author,
            name=new.name,
            query=new.query,
            at=time.time(),
        )
        await store.put(view)
    elif not await store.remove(given["id"]):
        raise NotFound(f"there is no view {given['id'][:80]!r}")
    return redirect(f"/dashboard/runs?{_checked(given['query'])}")


async def saved_views(visit: Visit) -> list[SavedView]:
    """The views that a visitor sees; none where the store keeps none."""
    store = visit.runtime.opened.stores.of(ViewStore)
    if store is None:
        return []
    return await store.listed(visit.tenant)
