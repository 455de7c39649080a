"""Checks of ViewStore."""

from __future__ import annotations

from msgspec.structs import replace

from gateway.backends import Stores
from gateway.features.pages.kept_views import SavedView, ViewStore
from steering_gateway_testing.store_conformance.check import Check, kept_by
from steering_gateway_testing.store_conformance.records import START, TENANT


def kept_views(stores: Stores) -> ViewStore:
    """The views of stores that keep some."""
    return kept_by(stores, ViewStore)


async def keeps_views_by_name(stores: Stores) -> None:
    """Those of a tenant, or all; of one that is put again name and query are replaced."""
    views = kept_views(stores)
    first = SavedView(
        id="v1", tenant=TENANT, author="Ada", name="slow", query="sort=duration", at=START
    )
    second = replace(first, id="v2", tenant="other", name="Failed", query="outcome=failure")
    await views.put(first)
    await views.put(second)
    assert await views.listed(None) == [second, first]
    assert await views.listed(TENANT) == [first]
    assert await views.listed("nobody") == []
    changed = replace(second, name="x", query="", tenant=TENANT, author="Bob", at=0.0)
    kept = replace(second, name="x", query="")
    await views.put(changed)
    assert await views.listed(None) == [first, kept]
    assert await views.remove("v1")
    assert not await views.remove("v1")
    assert await views.listed(None) == [kept]


CHECKS: tuple[Check, ...] = (keeps_views_by_name,)
