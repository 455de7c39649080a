"""Background tasks that check the rules and empty the queue."""

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from gateway.api.views import picked
from gateway.backends import Stores
from gateway.budget_interface import Accounting, UsedAccount
from gateway.config import Settings
from gateway.core.trouble import Act
from gateway.features.alerts.address import address_of, keep_address
from gateway.features.alerts.metrics import AlertMetrics
from gateway.features.alerts.outbox import AlertOutbox, key_of
from gateway.features.alerts.records import AlertRecord
from gateway.features.alerts.rules import Finding, Observations, RestCounter, findings
from gateway.features.alerts.settings import AlertSettings
from gateway.features.alerts.store import AlertStore
from gateway.hooks import features
from gateway.observability.logging import get_logger
from gateway.runtime import Runtime
from gateway.stores import filters, lists, under_way
from gateway.stores.protocols import StoreError
from gateway.stores.totals import RunRecord
from gateway.stores.watched import StoreHealth
from gateway.upstream.dry_seats import DrySeat
from gateway.values import FieldDict

_MOST_ACTS = 1000
_DELIVER_S = 1.0
_DAY_S = 86_400.0
_PRUNE_S = 3600.0


@dataclass(eq=False)
class AlertWatch:
    """Checks the rules every `alerts.check_interval_s` and delivers what is due, if there is a
    receiver."""

    settings: Callable[[], Settings]  # gives those in force
    stores: Stores  # runs, budgets and learning are read for the rules
    accounting: Accounting  # gives the accounts that were lately used
    outbox: AlertOutbox  # takes what is found
    rests: RestCounter  # of the deployments of this process
    seats: Callable[[], Sequence[DrySeat]]  # logins of clients at their limit
    degraded: Callable[[], StoreHealth | None]  # the store's state; None while it works
    # facts about clients whose prompts change, until they are reported
    unsteady: dict[tuple[str, str], FieldDict]
    # gives the address at which an operator saw the dashboard last; "" for never
    visited: Callable[[], str]
    # acts since the last look; the oldest are forgotten
    _acts: deque[tuple[str, str, Act]] = field(
        default_factory=lambda: deque(maxlen=_MOST_ACTS), init=False
    )
    # epoch seconds of the Monday whose report was found last
    _reported: int = field(default=0, init=False)
    # the address that was noted last
    _visited: str = field(default="", init=False)
    # monotonic seconds at which old alerts are removed next
    _prune_at: float = field(default=float("-inf"), init=False)
    # loops whose failure was logged and that have not worked since
    _failing: set[str] = field(default_factory=set, init=False)
    # one entry when a loop begins to fail
    _log: Any = field(default_factory=lambda: get_logger("gateway.alerts"), init=False)

    @property
    def _own(self) -> AlertSettings:
        return self.settings().of(AlertSettings)

    async def follow_rules(self) -> None:
        """Check again and again, without end."""
        while True:
            await self._attempt("rules of alerts not checked", self.check)
            await asyncio.sleep(self._own.check_interval_s)

    async def follow_queue(self) -> None:
        """Deliver again and again, without end."""
        while True:
            await self._attempt("alerts not delivered", self._deliver)
            await asyncio.sleep(min(_DELIVER_S, self._own.check_interval_s))

    async def _attempt(self, what: str, work: Callable[[], Awaitable[object]]) -> None:
        """Work if there is a sink. A failure is logged once until the same works again; it ends
        neither loop."""
        if not self._own.sinks:
            return
        try:
            await work()
        except Exception as error:
            if what not in self._failing:
                self._log.exception(what, reason=str(error))
            self._failing.add(what)
        else:
            self._failing.discard(what)

    def acted(self, run: str, tenant: str, act: Act) -> None:
        """Take in an act on the trouble of a run, for the next look."""
        if self._own.sinks:
            self._acts.append((run, tenant, act))

    async def check(self) -> int:
        """Look once; returns how many alerts are new."""
        signals = await self._signals()
        now = time.time()
        found = findings(signals, self._own.rules)
        if self._own.rules.approval_asked and signals.store is None:
            found += await self._asked()
        if self._own.rules.weekly_report and signals.store is None:
            found += await self._week(now)
        return sum([await self.outbox.take(one, now) for one in found])

    async def _asked(self) -> list[Finding]:
        """The questions that are open; the links are signed when they are sent."""
        controls = self.stores.controls
        return [
            Finding(
                rule="approval_asked",
                subject=key_of(each),
                severity="danger",
                title=f"A run waits for an answer: {each.reason}",
                tenant=each.tenant,
                facts={"run_id": each.subject},
                path=f"/dashboard/runs/{each.subject}",
            )
            for each in (await controls.list_controls() if controls else ())
            if each.action == "ask"
        ]

    async def _week(self, now: float) -> list[Finding]:
        """The report of the last week, from Monday 06:00 UTC on; its key makes it one."""
        if "reports" not in features():
            return []
        from gateway.features.reports.week import monday_of, read_week  # loaded only where it is on

        monday = monday_of(None, now - _DAY_S / 4)
        if monday == self._reported:
            return []
        week = await read_week(self.stores, monday, None)
        self._reported = monday
        day = week["day"]
        about = {"title": week["title"], "path": f"/dashboard/week?date={day}"}
        facts = {"lines": week["summary"]}
        return [Finding(rule="weekly_report", subject=day, severity="low", facts=facts, **about)]

    async def _deliver(self) -> None:
        now = time.time()
        await self.outbox.deliver(now)
        visited = self.visited()
        if visited != self._visited and self.degraded() is None:
            await keep_address(self.outbox.store, visited)
            self._visited = visited
        if time.monotonic() >= self._prune_at:
            self._prune_at = time.monotonic() + _PRUNE_S
            await self.outbox.prune(now)

    async def _signals(self) -> Observations:
        store = self.degraded()
        live: tuple[under_way.LiveRun, ...] = ()
        accounts: Sequence[UsedAccount] = ()
        newest = []
        if store is None:
            try:
                live = await self.stores.runs.live_runs(under_way.LiveQuery.at(time.time()))
                since = time.time() - under_way.LIVE_S
                accounts = await self.accounting.used(since)
                if self.settings().control.on_trouble == "hand_over":
                    found = await self._newest()
                    newest += [r for r in found if r.updated_at >= since and not r.stopped]
                found = await self._newest(stopped=filters.ANY)
                newest += [r for r in found if r.stopped and r.stopped.at >= since]
            except StoreError as error:
                self._log.warning("runs not read for alerts", reason=str(error))
        acts = list(self._acts)
        self._acts.clear()
        unsteady = dict(self.unsteady)
        self.unsteady.clear()
        return Observations(
            live=live,
            acts=acts,
            newest=newest,
            rested=self.rests.new(),
            seats=self.seats(),
            store=store,
            accounts=accounts,
            unsteady=unsteady,
        )

    async def _newest(self, **chosen: Any) -> Sequence[RunRecord]:
        """Runs of the last week with the newest calls."""
        begun = time.time() - under_way.LONGEST_S
        page = lists.PageRequest(sort="updated_at", limit=under_way.LIVE_RUNS)
        wanted = filters.RunFilter(mode=filters.LIVE, since=begun, **chosen)
        return (await self.stores.runs.list_runs(wanted, page)).runs


async def start(runtime: Runtime) -> None:
    """Fill and empty the queue from now on. A store without one keeps no alerts, and none is
    sent."""
    opened = runtime.opened
    store = opened.stores.of(AlertStore)
    if store is None:
        return
    metrics = runtime.metrics.of(AlertMetrics)

    def publish(alert: AlertRecord) -> None:
        about = picked(alert, "tenant", "rule", "severity_word", "severity")
        runtime.events.publish({"type": "alert", "alert_id": alert.id, **about})

    outbox = AlertOutbox(
        store,
        lambda: runtime.settings.of(AlertSettings),
        metrics,
        usable=lambda: runtime.degraded() is None,
        publish=publish,
    )
    outbox.controls = opened.stores.controls
    outbox.address = lambda: address_of(
        runtime.settings, store, runtime.visited_at, port=runtime.port
    )
    metrics.in_memory.set_function(lambda: outbox.in_memory)
    watch = AlertWatch(
        lambda: runtime.settings,
        opened.stores,
        opened.accounting,
        outbox=outbox,
        rests=RestCounter(runtime.metrics),
        seats=lambda: runtime.services.dispatcher.dry.shown(time.time()),
        degraded=runtime.degraded,
        unsteady=runtime.unsteady,
        visited=lambda: runtime.visited_at,
    )
    runtime.acted.append(watch.acted)
    runtime.follow(watch.follow_rules(), "rules of alerts")
    runtime.follow(watch.follow_queue(), "queue of alerts")
