"""`/api/alerts`: alerts and their delivery."""

from typing import Annotated

from pydantic import BaseModel, Field

from gateway.api.operations import ApiRequest, ApiResponse, Operations, like, shape
from gateway.api.params import DIGITS, TenantParameter
from gateway.api.views import picked
from gateway.errors import NotFound
from gateway.features.alerts.address import address_of
from gateway.features.alerts.records import AlertRecord, DeliveryState, StoredAlert
from gateway.features.alerts.sender import alert_view
from gateway.features.alerts.store import AlertStore
from gateway.stores.severity import SeverityWord
from gateway.values import FieldDict

OPERATIONS = Operations()


class AlertParameters(TenantParameter):
    """Filter of alerts."""

    limit: Annotated[int, Field(ge=1, le=500), DIGITS] = 50  # at most this many, the newest first


@like(DeliveryState)
class AlertDelivery(BaseModel):
    """State of the delivery to one receiver."""

    attempts: int  # failed ones
    next_at: float | None  # epoch seconds of the next attempt; null when none follows
    done_at: float | None  # when it was sent, or given up
    error: str | None  # of the latest attempt; null when that succeeded


@like(AlertRecord, "id", "rule", "severity", "title", "facts", "raised_at")
class Alert(BaseModel):
    """One alert."""

    severity_word: SeverityWord  # how bad it is
    tenant: str | None  # null: about the gateway as a whole
    seen_at: float  # when the condition was last seen
    link: str | None  # page about it; null where it has none
    thread: str  # shared by the alerts about one trouble: id of the session, or what it is about
    update_of: str  # id of the alert that opened the thread; "" for that one
    deliveries: list[AlertDelivery]  # one for each receiver


AlertList = shape("AlertList", "The newest alerts.", alerts=list[Alert])


@OPERATIONS.add("GET /api/alerts", AlertList, "The alerts.")
async def list_alerts(request: ApiRequest[AlertParameters]) -> ApiResponse:
    """Alerts, the newest first, with their deliveries."""
    store = request.runtime.opened.stores.of(AlertStore)
    if store is None:
        raise NotFound("this gateway's store keeps no alerts")
    found = await store.list_alerts(tenant=request.tenant, limit=request.params.limit)
    runtime = request.runtime
    address = await address_of(runtime.settings, store, runtime.visited_at, port=runtime.port)
    return ApiResponse({"alerts": [stored_alert_view(one, address) for one in found]})


def stored_alert_view(stored: StoredAlert, address: str) -> FieldDict:
    """An alert with its deliveries as plain values."""
    deliveries = [
        {
            **picked(state, "sink", "attempts", "done_at"),
            "next_at": None if state.done_at is not None else state.next_at,
            "error": state.error or None,
        }
        for state in stored.deliveries
    ]
    view = alert_view(stored.alert, address)
    return {**view, "seen_at": stored.seen_at, "deliveries": deliveries}
