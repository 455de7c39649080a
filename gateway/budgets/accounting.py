"""Budgets of the process: ledger, holds, notices, and calls to a judge or an embedder."""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence

from cachetools import FIFOCache
from msgspec import Struct

from gateway.budgets.estimate import Cost, Estimator
from gateway.budgets.guard import Admission, BudgetGuard, CallBody, Refused, amounts_of
from gateway.budgets.ledger import BudgetLedger
from gateway.budgets.rules import BudgetStatus, CallSubject
from gateway.config import Settings
from gateway.config.budgets import BudgetSettings
from gateway.holds import Holds
from gateway.observability.live_events import Event, EventHub
from gateway.observability.logging import get_logger
from gateway.observability.metrics import Metrics
from gateway.stores.budgets import NOTHING, Amounts, BudgetStore
from gateway.stores.protocols import StoreError
from gateway.stores.sql.controls import ControlStore
from gateway.tasks import spawn
from gateway.values import Fields


class OwnCalls:
    """Counts tokens and dollars of the gateway's own calls, not the calls: those are the agents'.
    `use` gives it the budgets of each config."""

    def __init__(self) -> None:
        self._guard: BudgetGuard | None = None
        self._cost: Cost = lambda _model, _usage: None
        self._binding = True

    def use(self, guard: BudgetGuard | None, cost: Cost, *, binding: bool) -> None:
        """Count on the budgets of `guard`; `binding` False: nothing is refused."""
        self._guard = guard
        self._cost = cost
        self._binding = binding

    async def admit(
        self,
        model: str,
        asked: str,
        *,
        answers: bool = True,
        tenant: str = "",
        root: str = "",
        run: str = "",
    ) -> "OwnCall | None":
        """A call that may be made; None when a budget has not enough left for it. `answers`: the
        model writes an answer. Without a tenant the call counts on the budgets of a day alone."""
        guard = self._guard
        if guard is None:
            return OwnCall()
        subject = CallSubject(tenant=tenant, model=model, root=root, run=run)
        body = CallBody(fields={}, raw=asked.encode("utf-8", "replace"), answers=answers, calls=0)
        try:
            admission = await guard.admit(subject, model, body, binding=self._binding)
        except Refused:
            return None
        return OwnCall(None if admission is None else (guard, admission, self._cost))


class OwnCall(Struct):
    """A call of the gateway's own that may be made."""

    # what was reserved, and by which budgets; None: it counts on no budget
    admitted: tuple[BudgetGuard, Admission, Cost] | None = None

    def settle(self, usage: Fields | None) -> None:
        """Note the end of the call. `usage`: None when it is unknown, so that the estimate counts;
        empty for a call that failed."""
        if self.admitted is None:
            return
        guard, admission, cost = self.admitted
        used: Amounts | None = None if usage is None else NOTHING
        unpriced = False
        if usage:
            used, unpriced = amounts_of(admission.estimate.model, usage, cost, calls=0)
        # Nobody waits for it: a slow store would cost the run its time for steering.
        spawn(guard.settle(admission, used, unpriced=unpriced))


_REMEMBERED = 10_000
_LOGGED = ("budget", "scope", "subject", "step", "used", "metric")


class BudgetNotices:
    """Makes one live event, log line and count of each step that is reached, and calls the
    `listeners`. Each gateway remembers its own notices only."""

    def __init__(self, events: EventHub, metrics: Metrics) -> None:
        self.listeners: list[Callable[[Event], None]] = []
        self._events = events
        self._metrics = metrics
        self._published: FIFOCache[tuple[str, str, float], None] = FIFOCache(_REMEMBERED)

    def reached(self, found: BudgetStatus, call: CallSubject) -> None:
        """Announce the steps that this budget, which is no rate, has reached for the first time."""
        budget = found.applied.budget
        account = found.account
        if budget.is_rate:
            return
        for step in found.reached:
            known = (budget.name, account.subject, step.at)
            if known in self._published:
                continue
            self._published[known] = None
            self._metrics.budget_steps.labels(budget.name, step.name).inc()
            event: Event = {
                "type": "budget",
                "tenant": call.tenant,
                "budget": budget.name,
                "scope": "+".join(budget.scopes),
                "subject": account.subject,
                "run_id": call.run or None,
                "step": step.name,
                "at": step.at,
                "used": found.share,
                "metric": found.metric,
            }
            _log.warning("budget step reached", **{k: event[k] for k in _LOGGED})
            self._events.publish(event)
            for listener in self.listeners:
                listener(event)

    def forget(self, budget: str, subject: str) -> None:
        """Announce this subject's steps again: it was raised, lifted or reset."""
        for known in [key for key in self._published if key[:2] == (budget, subject)]:
            del self._published[known]


_DAY_S = 86_400.0
_log = get_logger("gateway.budgets")


class Accounting:
    """The accounts and holds of one process. Made on the event loop; `follow` must run. `stores`:
    of budgets and of holds, None: in memory only. `of_keys`: budgets by tenant and key, which
    change."""

    def __init__(
        self,
        stores: tuple[BudgetStore | None, ControlStore | None],
        settings: Callable[[], Settings],
        events: EventHub,
        metrics: Metrics,
        of_keys: Mapping[tuple[str, str], Sequence[BudgetSettings]],
    ) -> None:
        self._settings = settings
        self._of_keys = of_keys
        retry_s = settings().storage.probe_interval_s
        self.ledger = BudgetLedger(stores[0], lambda: settings().control, retry_s)
        self.notices = BudgetNotices(events, metrics)
        self.holds = Holds(stores[1], lambda: settings().control)
        self.own_calls = OwnCalls()
        self._estimator = Estimator(settings().control.first_output_tokens)

    def budgets(self) -> tuple[BudgetSettings, ...]:
        """The budgets of the config and of the keys."""
        of_keys = [budget for budgets in self._of_keys.values() for budget in budgets]
        return (*self._settings().all_budgets(), *of_keys)

    def guard(self, settings: Settings, cost: Cost) -> BudgetGuard:
        """The guard of the budgets in these settings, and of the keys."""
        self._estimator.first_output = settings.control.first_output_tokens
        parts = (self.ledger, self._estimator, cost, self.notices.reached, self._of_keys)
        guard = BudgetGuard(settings.all_budgets(), settings.control, *parts)
        self.own_calls.use(guard, cost, binding=settings.steering.mode != "shadow")
        return guard

    async def follow(self) -> None:
        """Write what waits, remove old accounts, and keep up with other gateways' holds."""
        following = [spawn(self.ledger.follow()), spawn(self.holds.follow())]
        try:
            while True:
                storage = self._settings().storage
                await asyncio.sleep(storage.retention_interval_s)
                if not storage.retention_days or not self.budgets():
                    continue
                try:
                    await self.ledger.prune(time.time() - storage.retention_days * _DAY_S)
                except StoreError as error:
                    _log.warning("old budget accounts not removed", reason=str(error))
        finally:
            for task in following:
                task.cancel()
