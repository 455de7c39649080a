"""Views of the list of runs that people saved, by name: `/api/views`, and the form on the list."""

import secrets
import time
from typing import Annotated

from msgspec.structs import asdict
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints

from gateway.api.operations import ApiRequest, ApiResponse, Body, Operations, like, shape
from gateway.api.params import (
    Parameters,
    PathText,
    RunFilters,
    SortParameters,
    TenantParameter,
    read_model,
    read_parameters,
)
from gateway.auth.access import Access
from gateway.errors import NotFound
from gateway.features.pages.kept_views import SavedView, ViewStore
from gateway.features.pages.pages import Page, Visit, redirect
from gateway.runtime import Runtime

OPERATIONS = Operations()


class _Query(SortParameters, RunFilters):
    """The filters and the order that a view may have."""


def _checked(query: str) -> str:
    """A query that the list of runs takes. Raises: BadRequest."""
    read_parameters(_Query, query.encode())
    return query


class NewView(BaseModel):
    """A view that is to be saved."""

    model_config = ConfigDict(extra="forbid")
    id: Annotated[str, Field(max_length=40)] = ""  # of the view to replace; "": a new one
    # 1 to 60 characters, blanks at the ends removed
    name: Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=60)]
    # as in the address of the list of runs, such as `severity=in-trouble&period=week`
    query: Annotated[str, Field(max_length=2000), AfterValidator(_checked)]


class ViewParameters(Parameters):
    """Id of a view."""

    view_id: PathText  # the id of a saved view


@like(SavedView)
class View(BaseModel):
    """A saved view."""


ViewList = shape("ViewList", "Saved views by name.", views=list[View])


@OPERATIONS.add("GET /api/views", ViewList, "The newest 100.")
async def list_views(request: ApiRequest[TenantParameter]) -> ApiResponse:
    """Views of the list of runs that people saved."""
    found = await stored_views(request.runtime).listed(request.tenant)
    return ApiResponse({"views": [asdict(view) for view in found]})


@OPERATIONS.add("POST /api/views", Body(View, "The view."), body=NewView)
async def save_view(request: ApiRequest[TenantParameter]) -> ApiResponse:
    """Save a query of the list of runs; with `tenant`, its keys are shown the view, too."""
    new = request.read(NewView)
    view = await _save(request.runtime, new, request.access, tenant=request.tenant)
    return ApiResponse(asdict(view))


@OPERATIONS.add("DELETE /api/views/{view_id}", shape("RemovedView", "Its id.", id=str))
async def remove_view(request: ApiRequest[ViewParameters]) -> ApiResponse:
    """Remove a saved view."""
    await _remove(request.runtime, request.params.view_id)
    return ApiResponse({"id": request.params.view_id})


async def change(visit: Visit) -> Page:
    """Save, rename or remove a view by the form of the list, and show the list with it."""
    form = visit.form
    given = {name: form.get(name, "") for name in ("id", "name", "query")}
    if form.get("action") == "remove":
        await _remove(visit.runtime, given["id"])
    else:
        new = read_model(NewView, given)
        await _save(visit.runtime, new, visit.access, tenant=visit.tenant)
    return redirect(f"/dashboard/runs?{_checked(given['query'])}")


async def saved_views(visit: Visit) -> list[SavedView]:
    """The views that a visitor sees; none where the store keeps none."""
    store = visit.runtime.opened.stores.of(ViewStore)
    if store is None:
        return []
    return await store.listed(visit.tenant)


def stored_views(runtime: Runtime) -> ViewStore:
    """The store of views. Raises: NotFound: this database has none."""
    store = runtime.opened.stores.of(ViewStore)
    if store is None:
        raise NotFound("this gateway's store keeps no views")
    return store


async def _save(runtime: Runtime, new: NewView, access: Access, *, tenant: str | None) -> SavedView:
    view = SavedView(
        id=new.id or f"view-{secrets.token_hex(6)}",
        tenant=tenant or "",
        author=access.author,
        name=new.name,
        query=new.query,
        at=time.time(),
    )
    return await stored_views(runtime).put(view)


async def _remove(runtime: Runtime, view_id: str) -> None:
    if not await stored_views(runtime).remove(view_id):
        raise NotFound(f"there is no view {view_id[:80]!r}")
