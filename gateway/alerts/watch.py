"""Background tasks that check the rules and deliver alerts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from gateway.alerts.outbox import AlertOutbox
from gateway.alerts.rules import CallCounters, Signals, UsedAccount, findings
from gateway.budgets.ledger import BudgetLedger
from gateway.config import Settings
from gateway.config.budgets import BudgetSettings
from gateway.observability.live_events import EventHub
from gateway.observability.logging import get_logger
from gateway.observability.metrics import Metrics
from gateway.stores.alerts import AlertRecord, AlertStore
from gateway.stores.guard.guarded import StoreHealth
from gateway.stores.protocols import RunStore, StoreError
from gateway.stores.queries import (
    LIVE,
    LIVE_RUNS,
    LIVE_S,
    LiveQuery,
    LiveRun,
    PageRequest,
    RunFilter,
)
from gateway.stores.totals import RunRecord
from gateway.stores.usage import UsageQuery

_DELIVER_S = 1.0
_DAY_S = 86_400.0
_USUAL_S = 600.0  # how often the usual cached share is read again
_PRUNE_S = 3600.0


@dataclass(eq=False)
class AlertWatch:
    """Checks the rules every `alerts.check_interval_s` and delivers what is due, if there is a
    sink."""

    settings: Callable[[], Settings]
    runs: RunStore
    ledger: BudgetLedger
    outbox: AlertOutbox
    counters: CallCounters
    degraded: Callable[[], StoreHealth | None]
    _usual: float | None = field(default=None, init=False)
    _usual_until: float = field(default=float("-inf"), init=False)
    _prune_at: float = field(default=float("-inf"), init=False)
    _failing: set[str] = field(default_factory=set, init=False)
    _log: Any = field(default_factory=lambda: get_logger("gateway.alerts"), init=False)

    async def follow_rules(self) -> None:
        """Check again and again, without end."""
        while True:
            await self._attempt("rules of alerts not checked", self.check)
            await asyncio.sleep(self.settings().alerts.check_interval_s)

    async def follow_queue(self) -> None:
        """Deliver again and again, without end."""
        while True:
            await self._attempt("alerts not delivered", self._deliver)
            await asyncio.sleep(min(_DELIVER_S, self.settings().alerts.check_interval_s))

    async def _attempt(self, what: str, work: Callable[[], Awaitable[object]]) -> None:
        """Work if there is a sink. A failure is logged once until the same works again; it ends
        neither loop."""
        if not self.settings().alerts.sinks:
            return
        try:
            await work()
        except Exception as error:
            if what not in self._failing:
                self._log.exception(what, reason=str(error))
            self._failing.add(what)
        else:
            self._failing.discard(what)

    async def check(self) -> int:
        """Look once; returns how many alerts are new."""
        signals, now = await self._signals(), time.time()
        found = findings(signals, self.settings().alerts.rules)
        return sum([await self.outbox.take(one, now) for one in found])

    async def _deliver(self) -> None:
        now = time.time()
        await self.outbox.deliver(now)
        if time.monotonic() >= self._prune_at:
            self._prune_at = time.monotonic() + _PRUNE_S
            await self.outbox.prune(now)

    async def _signals(self) -> Signals:
        store = self.degraded()
        live: tuple[LiveRun, ...] = ()
        accounts: Sequence[UsedAccount] = ()
        newest, control = list[RunRecord](), self.settings().control
        if store is None:
            try:
                live = await self.runs.live_runs(LiveQuery.at(time.time()))
                budgets, since = self.settings().all_budgets(), time.time() - LIVE_S
                accounts = await used_accounts(self.ledger, budgets, since)
                await self._read_usual()
                if control.at_risk != "off":  # an asked run may end before the next look
                    page = PageRequest(sort="updated_at", limit=LIVE_RUNS)
                    runs = (await self.runs.list_runs(RunFilter(mode=LIVE), page)).runs
                    newest += [run for run in runs if run.updated_at >= since]
            except StoreError as error:
                self._log.warning("runs not read for alerts", reason=str(error))
        window_s = self.settings().alerts.rules.window_s
        return Signals(
            live=live,
            newest=newest,
            goes_on_after=control.end_after,
            window=self.counters.since(time.monotonic(), window_s),
            usual_cached_share=self._usual,
            rested=self.counters.rested(),
            store=store,
            accounts=accounts,
        )

    async def _read_usual(self) -> None:
        """The cached share of the last 24 hours, without the running one."""
        if time.monotonic() < self._usual_until:
            return
        now = time.time()
        points = await self.runs.usage(
            UsageQuery(since=now - _DAY_S, until=now // 3600 * 3600, bucket="hour")
        )
        given = sum(point.input_tokens for point in points)
        self._usual = sum(point.cached_tokens for point in points) / given if given else None
        self._usual_until = time.monotonic() + _USUAL_S


_MOST = 500
# Metrics that rest on what providers report; calls and minutes are counted.
_REPORTED = frozenset({"usd", "tokens", "input_tokens", "output_tokens"})


async def used_accounts(
    ledger: BudgetLedger, budgets: Sequence[BudgetSettings], since: float
) -> list[UsedAccount]:
    """Every account of these budgets that was used at or after `since` (epoch) and has a limit.
    Raises: StoreError."""
    if not budgets:
        return []
    known, now = {budget.name: budget for budget in budgets}, time.time()
    found = []
    for account in await ledger.counted.list_accounts(limit=_MOST):
        budget = known.get(account.budget)
        if budget is None or account.updated_at < since:
            continue
        used, metric = account.share(budget.limits.given(), now)
        if metric:
            found.append(
                UsedAccount(
                    budget=budget.name,
                    scope=budget.scope,
                    subject=account.subject,
                    tenant=account.tenant,
                    used=used,
                    metric=metric,
                    estimated=metric in _REPORTED and account.estimated.of(metric) > 0,
                )
            )
    return found


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

    alerts, usable = (lambda: settings().alerts), (lambda: degraded() is None)
    outbox = AlertOutbox(store, alerts, metrics, usable=usable, publish=publish)
    metrics.alerts_in_memory.set_function(lambda: outbox.in_memory)
    return outbox, AlertWatch(settings, runs, ledger, outbox, CallCounters(metrics), degraded)
