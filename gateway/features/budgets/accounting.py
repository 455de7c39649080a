"""The accounts of a process: written and removed in time, and what an operator allows them."""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from typing import cast

from gateway.backends import Stores
from gateway.budget_interface import (
    Accounting,
    Cost,
    ForgedAccount,
    Guard,
    UsedAccount,
)
from gateway.config import Settings
from gateway.errors import BadRequest, NotFound
from gateway.features.budgets.accounts import Account, AccountKey
from gateway.features.budgets.expected_use import Estimator
from gateway.features.budgets.leases import BudgetLedger
from gateway.features.budgets.metrics import BudgetMetrics
from gateway.features.budgets.notices import BudgetNotices
from gateway.features.budgets.own_calls import BudgetOwnCalls
from gateway.features.budgets.passthrough import FullGuard
from gateway.features.budgets.settings import METRICS, BudgetSettings, all_budgets, control_of
from gateway.features.budgets.store import SQLBudgetStore
from gateway.features.budgets.texts import account_view
from gateway.observability.live_events import EventHub
from gateway.observability.logging import get_logger
from gateway.observability.metrics import Metrics
from gateway.runtime import Runtime
from gateway.stores.protocols import StoreError
from gateway.tasks import spawn
from gateway.values import FieldDict

_DAY_S = 86_400.0
_MOST = 500
_REPORTED = frozenset({"usd", "tokens", "input_tokens", "output_tokens"})
_log = get_logger("gateway.budgets")
_operator = get_logger("gateway")


class BudgetAccounting(Accounting):
    """The accounts of one process. Made on the event loop; `follow` must run."""

    def __init__(
        self,
        stores: Stores,
        settings: Callable[[], Settings],
        events: EventHub,
        metrics: Metrics,
        of_keys: Mapping[tuple[str, str], Sequence[BudgetSettings]],
    ):
        self._settings = settings
        self._of_keys = of_keys
        self._metrics = metrics.of(BudgetMetrics)
        control = control_of(settings())
        retry_s = settings().storage.probe_interval_s
        store = stores.of(SQLBudgetStore)
        self.ledger = BudgetLedger(store, lambda: control_of(settings()), retry_s)
        self.notices = BudgetNotices(events, self._metrics, stores.changes)
        self._own = BudgetOwnCalls()
        self.own_calls = self._own
        self._estimator = Estimator(control.first_output_tokens)

    def budgets(self) -> tuple[BudgetSettings, ...]:
        """The budgets of the config and of the keys."""
        of_keys = [budget for budgets in self._of_keys.values() for budget in budgets]
        return (*all_budgets(self._settings()), *of_keys)

    def guard(self, settings: Settings, cost: Cost) -> Guard | None:
        """The guard of the budgets in these settings, and of the keys."""
        control = control_of(settings)
        self._estimator.first_output = control.first_output_tokens
        guard = FullGuard(
            budgets=all_budgets(settings),
            control=control,
            ledger=self.ledger,
            estimator=self._estimator,
            cost=cost,
            reached=self.notices.reached,
            stopped=lambda name: self._metrics.stops.labels(name).inc(),
            of_keys=self._of_keys,
        )
        self._own.guard = guard
        self._own.binding = settings.steering.mode != "shadow"
        return guard

    async def follow(self) -> None:
        """Write what waits, and remove old accounts."""
        following = spawn(self.ledger.follow())
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
            following.cancel()

    async def close(self) -> None:
        """Give back everything that is not used."""
        await self.ledger.flush(closing=True)

    async def used(self, since: float) -> list[UsedAccount]:
        """See Accounting; also accounts of budgets of keys."""
        known = {budget.name: budget for budget in self.budgets()}
        now = time.time()
        found = []
        for account in await self.ledger.list_accounts(limit=_MOST) if known else ():
            budget = known.get(account.budget)
            if budget is None or budget.is_rate or account.updated_at < since:
                continue
            used, metric = account.share(budget.limits.given(), now)
            if metric:
                kind = UsedAccount
                if account.forged:
                    kind = ForgedAccount
                found.append(
                    kind(
                        budget=budget.name,
                        scope="+".join(budget.scopes),
                        subject=account.subject,
                        tenant=account.tenant,
                        used=used,
                        metric=metric,
                        estimated=metric in _REPORTED and account.estimated.of(metric) > 0,
                        unpriced=account.unpriced if metric == "usd" else 0,
                    )
                )
        return found

    async def account(self, budget: str, subject: str) -> Account:
        """The account of a budget's subject. Raises: NotFound."""
        found = await self.ledger.accounts([AccountKey(budget=budget, subject=subject)])
        if not found:
            raise NotFound(f"the budget has no account {subject[:80]!r}", param="subject")
        return found[0]

    async def allow(
        self, budget: str, subject: str, *, limits: Mapping[str, float], lifted: bool | None
    ) -> Account:
        """Set what an operator allows an account; the account afterwards. Raises: NotFound;
        BadRequest."""
        if unknown := set(limits) - set(METRICS):
            message = f"limits: {min(unknown)!r} is not one of {', '.join(METRICS)}"
            raise BadRequest(message, param="limits")
        if not (limits or lifted) or not all(0 < value < float("inf") for value in limits.values()):
            raise BadRequest("limits: each must be a number above 0", param="limits")
        key = (await self.account(budget, subject)).key
        account = await self.ledger.allow(key, at=time.time(), limits=limits, lifted=lifted)
        self.notices.forget(key.budget, key.subject)
        _operator.warning(
            "budget limits changed", budget=key.budget, subject=key.subject, lifted=lifted
        )
        return account

    async def views(self, tenant: str | None, limit: int) -> list[FieldDict]:
        """The accounts last used, as the API shows them. Raises: StoreError."""
        budgets = self.budgets()
        if not budgets:
            return []
        found = await self.ledger.list_accounts(tenant=tenant, limit=limit)
        return [account_view(account, budgets, time.time()) for account in found]

    async def views_of(self, subjects: Sequence[str], limit: int) -> list[FieldDict]:
        """The accounts of runs and of trees of conversations. Raises: StoreError."""
        budgets = self.budgets()
        own = [budget.name for budget in budgets if budget.scopes in (("run",), ("tree",))]
        keys = [AccountKey(budget=name, subject=subject) for name in own for subject in subjects]
        found = await self.ledger.accounts(keys[:limit])
        return [account_view(each, budgets, time.time()) for each in found]


def accounting_of(runtime: Runtime) -> BudgetAccounting:
    """The accounts of a process."""
    return cast(BudgetAccounting, runtime.accounting)
