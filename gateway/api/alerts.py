"""`/api/alerts`: the alerts that were raised, and their delivery to each receiver."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from gateway.alerts.sender import alert_view
from gateway.api.operations import ApiRequest, ApiResponse, Content, Operations
from gateway.api.params import DIGITS, TenantParameter, described
from gateway.config import Settings
from gateway.stores.alerts import StoredAlert

OPERATIONS = Operations()


class AlertParameters(TenantParameter):
    """Filter of alerts."""

    limit: Annotated[
        int, Field(ge=1, le=500), DIGITS, described("At most this many, the newest first.")
    ] = 50


class AlertDelivery(BaseModel):
    """State of the delivery to one receiver."""

    sink: str
    attempts: Annotated[int, Field(description="Failed ones.")]
    next_at: float | None
    done_at: Annotated[float | None, Field(description="When it was sent, or given up.")]
    error: str | None


class Alert(BaseModel):
    """One alert."""

    id: str
    rule: str
    severity: Literal["warn", "danger"]
    title: str
    tenant: Annotated[str | None, Field(description="Null: about the gateway as a whole.")]
    facts: dict[str, Any]
    raised_at: float
    seen_at: Annotated[float, Field(description="When the condition was last seen.")]
    link: Annotated[str | None, Field(description="With alerts.base_url.")]
    deliveries: list[AlertDelivery]


class AlertList(BaseModel):
    """The newest alerts."""

    alerts: list[Alert]


@OPERATIONS.add("listAlerts", "GET /api/alerts", AlertParameters, Content(AlertList, "The alerts."))
async def list_alerts(request: ApiRequest[AlertParameters]) -> ApiResponse:
    """Alerts, the newest first, with their deliveries."""
    found = await request.runtime.alerts.list_alerts(
        tenant=request.tenant, limit=request.params.limit
    )
    settings = request.runtime.settings
    return ApiResponse(payload={"alerts": [stored_alert_view(one, settings) for one in found]})


def stored_alert_view(stored: StoredAlert, settings: Settings) -> dict[str, Any]:
    """An alert with its deliveries as plain values."""
    deliveries = [
        {
            "sink": state.sink,
            "attempts": state.attempts,
            "next_at": None if state.done_at is not None else state.next_at,
            "done_at": state.done_at,
            "error": state.error or None,
        }
        for state in stored.deliveries
    ]
    view = alert_view(stored.alert, settings.alerts.base_url)
    return {**view, "seen_at": stored.seen_at, "deliveries": deliveries}
