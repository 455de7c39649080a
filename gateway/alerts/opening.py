"""Puts queue and rules together for one process."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gateway.alerts.accounts import used_accounts
from gateway.alerts.outbox import AlertOutbox
from gateway.alerts.rules import UsedAccount
from gateway.alerts.watch import AlertWatch
from gateway.budgets.ledger import BudgetLedger
from gateway.config import Settings
from gateway.observability.live_events import EventHub
from gateway.observability.metrics import Metrics
from gateway.stores.alerts import AlertRecord, AlertStore
from gateway.stores.guarded import StoreHealth
from gateway.stores.protocols import RunStore


def open_alerts(
    settings: Callable[[], Settings],
    store: AlertStore,
    runs: RunStore,
    ledger: BudgetLedger,
    *,
    metrics: Metrics,
    events: EventHub,
    degraded: Callable[[], StoreHealth | None],
) -> tuple[AlertOutbox, AlertWatch]:
    """The queue, and what fills and empties it; `settings` gives those in force."""

    def publish(alert: AlertRecord) -> None:
        about = {"rule": alert.rule, "severity": alert.severity, "alert_id": alert.id}
        events.publish({"type": "alert", "tenant": alert.tenant, **about})

    async def accounts(since: float) -> Sequence[UsedAccount]:
        return await used_accounts(ledger, settings().all_budgets(), since)

    outbox = AlertOutbox(
        store,
        lambda: settings().alerts,
        metrics,
        usable=lambda: degraded() is None,
        publish=publish,
    )
    metrics.alerts_in_memory.set_function(lambda: outbox.in_memory)
    watch = AlertWatch(lambda: settings().alerts, runs, outbox, metrics, degraded, accounts)
    return outbox, watch
