"""The accounts of budgets, as the rules look at them."""

from __future__ import annotations

import time
from collections.abc import Sequence

from gateway.alerts.rules import UsedAccount
from gateway.budgets.ledger import BudgetLedger
from gateway.config.budgets import BudgetSettings

_MOST = 500
_REPORTED = frozenset({"usd", "tokens", "input_tokens", "output_tokens"})
"""Metrics that rest on what providers report; calls and minutes are counted."""


async def used_accounts(
    ledger: BudgetLedger, budgets: Sequence[BudgetSettings], since: float
) -> list[UsedAccount]:
    """Every account of these budgets that was used at or after `since` (epoch) and has a limit.

    Raises: StoreError.
    """
    if not budgets:
        return []
    store = ledger.store if ledger.durable else ledger.memory
    known, now = {budget.name: budget for budget in budgets}, time.time()
    found = []
    for account in await store.list_accounts(limit=_MOST):
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
