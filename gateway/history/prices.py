"""The cost of a recorded model call at the prices of its day."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final, NamedTuple

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


def cost_of(call: ModelCall, tokens: Mapping[str, int] | None = None) -> float | None:
    """US dollars of one call: as the agent noted it, else by the price list; None if unknown.
    `tokens`: those of its usage as `tokens_of` gives them, if they have been read."""
    if call.cost_usd is not None:
        return call.cost_usd
    tokens = tokens_of(call.usage) if tokens is None else tokens
    if not any(tokens.values()):
        return None
    if past := _past_rates(call):
        return charge(tokens, past)
    model = capabilities(call.model)
    return model.cost_of_tokens(tokens) if model else None


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


def grouped(found: Mapping[str, int]) -> Tokens:
    """The tokens that `tokens_of` gives, in fewer kinds; reasoning counts as output."""
    return Tokens(
        input=found["input"] + found["audio_input"],
        cache_read=found["cache_read"],
        cache_write=found["cache_write"] + found["cache_write_1h"],
        output=found["output"] + found["reasoning"] + found["audio_output"],
    )
