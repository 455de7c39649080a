"""Alerts and their delivery: the values, and what the gateway needs of a store for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol

from msgspec import Struct


class AlertRecord(Struct, frozen=True, kw_only=True):
    """One alert. `key`: a rule and its subject; a key that is seen again is the same alert.
    `tenant` None: it concerns the gateway as a whole. `facts`: names and numbers, no texts of a
    conversation; `path`: the page about it, `/dashboard/...` or empty."""

    id: str
    key: str
    rule: str
    severity: Literal["warn", "danger"]
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


class AlertStore(Protocol):
    """The queue of alerts, which several gateways may share. Every method may raise StoreError."""

    async def raise_alert(
        self, alert: AlertRecord, sinks: Mapping[str, float], *, cooldown_s: float
    ) -> bool:
        """Store `alert` with a delivery to each sink, due at the given time. False when its key was
        seen less than `cooldown_s` before: then only the time at which it was last seen moves, so
        that a condition that flaps is one alert."""

    async def is_due(self, now: float) -> bool:
        """True if `claim` would return anything."""

    async def claim(self, owner: str, now: float, *, lease_s: float, limit: int) -> list[Delivery]:
        """The oldest deliveries due at `now`, at most `limit` of each sink, taken by `owner` until
        `now + lease_s`, or until they are settled."""

    async def settle(self, owner: str, results: Sequence[Settled], now: float) -> None:
        """Note the results of attempts, except those that somebody else has claimed since."""

    async def list_alerts(self, *, tenant: str | None, limit: int = 50) -> list[StoredAlert]:
        """The newest alerts first; `tenant` None means every alert, those of no tenant too."""

    async def prune_alerts(self, older_than: float) -> int:
        """Remove alerts raised and last seen before a time, delivered or not; returns how many."""
