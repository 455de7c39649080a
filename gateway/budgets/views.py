"""Accounts as the control plane, the commands and the pages show them. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from gateway.config.budgets import BudgetSettings
from gateway.stores.budgets import Account


def account_view(account: Account, budgets: Sequence[BudgetSettings], now: float) -> dict[str, Any]:
    """An account with the limits in force, how far they are used, and the step that is reached."""
    budget = next((each for each in budgets if each.name == account.budget), None)
    configured = budget.limits.given() if budget is not None else {}
    share, metric = account.share(configured, now)
    ladder = budget.ladder if budget is not None else ()
    reached = [step.name for step in ladder if share >= step.at * (1 - 1e-9)]
    return {
        "budget": account.budget,
        "subject": account.subject,
        "scope": budget.scope if budget is not None else None,
        "tenant": account.tenant,
        "spent": asdict(account.spent),
        "reserved": asdict(account.reserved),
        "unpriced": account.unpriced,
        "estimated": asdict(account.estimated),
        "started_at": account.started_at,
        "updated_at": account.updated_at,
        "limits": account.limits_of(configured),
        "lifted": account.lifted,
        "used": share,
        "metric": metric,
        "step": reached[-1] if reached else None,
    }
