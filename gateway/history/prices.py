"""The cost of a recorded model call at the prices of its day."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from gateway.history.session import ModelCall
from gateway.upstream.prices import Rates, capabilities, charge, tokens_of


class PastPrice(NamedTuple):
    """The rates of a model, in US dollars per token, for calls before `until` (an ISO date)."""

    model: str
    until: str
    rates: Rates


PAST_PRICES: Final = (
    # OpenAI, announcement of 2025-06-10: o3 costs 80 % less from then on.
    PastPrice("o3", "2025-06-10", {"input": 10e-6, "cache_read": 2.5e-6, "output": 40e-6}),
)
"""Prices that have changed under the same name; all others are those of the installed list."""


def cost_of(call: ModelCall) -> float | None:
    """US dollars of one call: as the agent noted it, else by the price list; None if unknown."""
    if call.cost_usd is not None:
        return call.cost_usd
    if not any(tokens_of(call.usage).values()):
        return None
    if past := _past_rates(call):
        return charge(tokens_of(call.usage), past)
    model = capabilities(call.model)
    return model.cost(call.usage) if model else None


def _past_rates(call: ModelCall) -> Rates | None:
    if call.at is None:
        return None
    day = datetime.fromtimestamp(call.at, UTC).date().isoformat()
    name = call.model.rpartition("/")[2]
    return next((p.rates for p in PAST_PRICES if p.model == name and day < p.until), None)


class Tokens(NamedTuple):
    """Tokens of calls by kind, each counted once."""

    input: int = 0
    cache_read: int = 0
    cache_write: int = 0
    output: int = 0

    @property
    def total(self) -> int:
        """All of them."""
        return sum(self)

    def plus(self, other: Tokens) -> Tokens:
        """The sum of both."""
        return Tokens(*(a + b for a, b in zip(self, other, strict=True)))


def tokens_in(usage: Mapping[str, Any]) -> Tokens:
    """The tokens of a usage object; reasoning counts as output."""
    found = tokens_of(usage)
    return Tokens(
        input=found["input"] + found["audio_input"],
        cache_read=found["cache_read"],
        cache_write=found["cache_write"] + found["cache_write_1h"],
        output=found["output"] + found["reasoning"] + found["audio_output"],
    )
