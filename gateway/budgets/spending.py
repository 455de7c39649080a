"""What one call has reserved, until it is settled; without the request, which may be large."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.budgets.estimate import Cost
from gateway.budgets.guard import Admission, BudgetGuard
from gateway.exchange import Exchange
from gateway.stores.budgets import NOTHING, Amounts


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
        await self.guard.settle(self.admission, used, unpriced=unpriced)

    def _used(self, model: str) -> tuple[Amounts | None, bool]:
        """(what the call used, None = unknown; whether its price is unknown)."""
        upstream = self.exchange.upstream
        if not self.sent:
            return NOTHING, False
        if not upstream.usage:
            unread = self.answered and self.exchange.response.status < 400
            return (None if unread else Amounts(calls=1)), False
        cost = self.cost(model, upstream.usage)
        amounts = Amounts(
            usd=cost or 0.0,
            input_tokens=upstream.tokens.input or 0,
            output_tokens=upstream.tokens.output or 0,
            calls=1,
        )
        return amounts, cost is None
