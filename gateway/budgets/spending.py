"""What one call has reserved, until it is settled; without the request, which may be large."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gateway.budgets.estimate import Cost
from gateway.budgets.guard import Admission, BudgetGuard
from gateway.exchange import Exchange
from gateway.stores.budgets import NOTHING, Amounts
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
