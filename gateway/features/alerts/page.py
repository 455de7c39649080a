"""Alerts of the last day on the page Now."""

import time
from collections.abc import Set
from typing import ClassVar

from msgspec import Struct

from gateway.features.alerts.records import StoredAlert
from gateway.features.alerts.store import AlertStore
from gateway.features.pages.pages import Visit

_SHOWN = 5
_DAY_S = 86_400.0


class AlertPart(Struct, frozen=True):
    """The newest alerts, those of runs that the page shows left out."""

    template: ClassVar = "now_alerts.html"
    wide: ClassVar = False
    alerts: list[StoredAlert]  # newest first; at most as many as the page has room for


async def now_part(visit: Visit, shown: Set[str]) -> AlertPart | None:
    """The part of the page; None without alerts. `shown`: ids of the runs that the page shows."""
    store = visit.runtime.opened.stores.of(AlertStore)
    if store is None:
        return None
    found = await store.list_alerts(tenant=visit.tenant, limit=10 * _SHOWN)
    since = time.time() - _DAY_S
    alerts = [
        stored
        for stored in found
        if stored.seen_at > since and stored.alert.facts.get("run_id") not in shown
    ]
    if alerts:
        return AlertPart(alerts[:_SHOWN])
    return None
