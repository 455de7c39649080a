"""The reservation of a call whose answer is still being made: settled by whoever sees the answer.

It goes with the call into the store, as JSON, because another gateway, or this one after a restart,
may be the one that is asked for the answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from gateway.budgets.estimate import Cost
from gateway.budgets.guard import BudgetGuard
from gateway.budgets.ledger import Held
from gateway.budgets.spending import Spending, amounts_of
from gateway.exchange import Exchange
from gateway.stores.budgets import AccountKey, Amounts, Claim, Reserved, Wanted


@dataclass(slots=True, kw_only=True)
class LeftOpen:
    """What a call of another process has reserved, until it is settled here."""

    guard: BudgetGuard
    held: tuple[Held, ...]
    exchange: Exchange
    cost: Cost

    async def settle(self, model: str) -> None:
        """End the reservation with what the call used, at the prices of `model`."""
        upstream = self.exchange.upstream
        if not upstream.usage:
            used, unpriced = None, False
        else:
            used, unpriced = amounts_of(model, upstream.usage, self.cost)
        await self.guard.settle_held(
            self.held, used, unpriced=unpriced, estimated=upstream.usage_estimated
        )


def held_to_values(spending: Spending | None) -> list[dict[str, Any]]:
    """What `left_open` needs, as JSON values; empty when nothing is reserved in the store."""
    if spending is None:
        return []
    return [asdict(each.claim) for each in spending.admission.held if each.stored]


def left_open(
    values: list[Mapping[str, Any]], guard: BudgetGuard | None, exchange: Exchange, cost: Cost
) -> LeftOpen | None:
    """The reservation of a call of another process; None without one, or without budgets here."""
    if not values or guard is None:
        return None
    held = tuple(
        Held(claim=_claim(each), outcome=Reserved(accounts=()), stored=True) for each in values
    )
    return LeftOpen(guard=guard, held=held, exchange=exchange, cost=cost)


def _claim(values: Mapping[str, Any]) -> Claim:
    accounts = tuple(
        Wanted(**{**each, "key": AccountKey(**each["key"])}) for each in values["accounts"]
    )
    return Claim(**{**values, "estimate": Amounts(**values["estimate"]), "accounts": accounts})
