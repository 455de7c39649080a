"""What one call has reserved, until it is settled; without the request, which may be large."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from gateway.budgets.estimate import Cost
from gateway.budgets.guard import Admission, BudgetGuard
from gateway.budgets.ledger import Held
from gateway.exchange import Exchange
from gateway.stores.budgets import NOTHING, AccountKey, Amounts, Claim, Reserved, Wanted
from gateway.wire.usage import token_usage


@dataclass(slots=True, kw_only=True)
class Spending:
    """The admission of one call, and how to find out what it used.

    `sent`: whether an upstream was asked; `answered`: whether one gave an answer.
    """

    guard: BudgetGuard
    admission: Admission
    exchange: Exchange
    cost: Cost
    sent: bool = False
    answered: bool = False

    async def settle(self, model: str) -> None:
        """End the reservation with what the call used, at the prices of `model`; once."""
        used, unpriced = self._used(model)
        estimated = self.exchange.upstream.usage_estimated
        await self.guard.settle(self.admission, used, unpriced=unpriced, estimated=estimated)

    def _used(self, model: str) -> tuple[Amounts | None, bool]:
        """(what the call used, None = unknown; whether its price is unknown)."""
        upstream = self.exchange.upstream
        if not self.sent:
            return NOTHING, False
        if not upstream.usage:
            unread = self.answered and self.exchange.response.status < 400
            return (None if unread else Amounts(calls=1)), False
        return amounts_of(model, upstream.usage, self.cost)


def amounts_of(
    model: str, usage: Mapping[str, Any], cost: Cost, *, calls: int = 1
) -> tuple[Amounts, bool]:
    """(what reported `usage` comes to at the prices of `model`; whether that price is unknown)."""
    price, tokens = cost(model, usage), token_usage(usage)
    amounts = Amounts(
        usd=price or 0.0,
        input_tokens=tokens.input or 0,
        output_tokens=tokens.output or 0,
        calls=calls,
    )
    return amounts, price is None


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


def held_to_values(spending: Spending | LeftOpen | None) -> list[dict[str, Any]]:
    """The reservation as JSON values for `left_open`; empty when the store has none."""
    if not isinstance(spending, Spending):
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
