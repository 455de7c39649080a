"""Alerts and their delivery, as stores keep them."""

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from gateway.stores.totals import Severity


class AlertRecord(Struct, frozen=True, kw_only=True):
    """One alert. `key`: a rule and its subject; a key that is seen again is the same alert.
    `tenant` None: it concerns the gateway as a whole. `facts`: names and numbers, no texts of a
    conversation; `path`: the page about it, `/dashboard/...` or empty."""

    id: str
    key: str
    rule: str
    severity: Severity
    title: str
    raised_at: float
    tenant: str | None = None
    facts: Mapping[str, Any] = {}
    path: str = ""


class Delivery(Struct, frozen=True, kw_only=True):
    """One alert that is to be sent to one sink; `attempts` have failed so far."""

    alert: AlertRecord
    sink: str
    attempts: int = 0


class DeliveryState(Struct, frozen=True, kw_only=True):
    """Progress of the delivery to one sink. `done_at`: when it was sent or given up. `error`: of
    the latest attempt. `next_at`: the next attempt."""

    sink: str
    attempts: int
    next_at: float
    done_at: float | None
    error: str


class StoredAlert(Struct, frozen=True, kw_only=True):
    """An alert, when its condition was last seen, and its deliveries by name of the sink."""

    alert: AlertRecord
    seen_at: float
    deliveries: tuple[DeliveryState, ...]


class Settled(Struct, frozen=True, kw_only=True):
    """The result of one attempt: sent or given up (`done`), or to be tried again at `next_at`."""

    alert_id: str
    sink: str
    done: bool
    next_at: float
    error: str = ""
