"""Expected use of a call before it is sent, learned from earlier calls."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from gateway.stores.budgets import Amounts
from gateway.upstream.prices import BYTES_PER_TOKEN, body_tokens
from gateway.wire.coerce import as_int

Cost = Callable[[str, Mapping[str, Any]], float | None]
"""Model and usage -> US dollars; None for a model without a price."""

_MAXIMA = ("max_completion_tokens", "max_tokens", "max_output_tokens")
_NEWEST = 0.3
"""Weight of the newest call in the moving means: four calls make three quarters of them."""
_RATIO = (0.02, 4.0)
"""Range of what a call costs in relation to its estimate at list price: a cached prompt costs a
tenth of a fresh one."""
_KEPT = 5000  # of what was learned: the newest; one costs 200 bytes
_CHOICES = 128  # of one chat completion. Source: OpenAI API reference, `n`
_MOST_OUTPUT = 10**9  # a client may write any number as its maximum


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """Expected use of a call to a model.

    `whose`: the tree of conversations that the call belongs to, "" for none. `guessed`: no call of
    that tree to the model has ended yet. `raw_input`: tokens by the length of the body. `unpriced`:
    the model has no known price.
    """

    model: str
    whose: str
    amounts: Amounts
    guessed: bool
    raw_input: int
    unpriced: bool


@dataclass(slots=True)
class _Learned:
    """Moving means: tokens of an answer, input tokens that the body's length does not show (a
    history that the provider stores), cost in relation to list price."""

    output: float
    hidden: float
    cost_ratio: float


_LONG_ANSWER = 4096
"""Tokens that few answers pass. Clients ask for far more than they use: Claude Code for 64,000 of a
title."""


class Estimator:
    """Estimates calls by their model, and by the tree they belong to once that had a call.

    `first_output`: tokens expected of a model's first answer.
    """

    def __init__(self, first_output: int) -> None:
        self.first_output = first_output
        self._learned: OrderedDict[tuple[str, str], _Learned] = OrderedDict()

    def estimate(
        self,
        model: str,
        whose: str,
        body: Mapping[str, Any],
        tokens: int,
        cost: Cost,
        *,
        most: bool = False,
        answers: bool = True,
    ) -> Estimate:
        """The estimate for a body of `tokens`; `most` takes the request's own maximum of output.

        `answers` False: there is no output.
        """
        own = self._learned.get((model, whose))
        known = own or self._learned.get((model, ""))
        maximum = _maximum(body)
        output = known.output if known else float(self.first_output)
        if maximum is not None:
            usual = known.output if known else float(max(self.first_output, _LONG_ANSWER))
            output = maximum if most else min(usual, maximum)
        choices = min(max(1, as_int(body.get("n"), 1)), _CHOICES)
        output_tokens = round(min(output * choices, _MOST_OUTPUT)) if answers else 0
        input_tokens = max(0, round(tokens + (known.hidden if known else 0.0)))
        usage = {"prompt_tokens": input_tokens, "completion_tokens": output_tokens}
        full = cost(model, usage)
        amounts = Amounts(
            usd=(full or 0.0) * (known.cost_ratio if known else 1.0),
            input_tokens=input_tokens,
            output_tokens=output_tokens,
            calls=1,
        )
        return Estimate(
            model=model,
            whose=whose,
            amounts=amounts,
            guessed=own is None and not (most and maximum is not None),
            raw_input=tokens,
            unpriced=full is None,
        )

    def learn(self, estimate: Estimate, actual: Amounts, cost: Cost) -> None:
        """Note what a call used that was answered."""
        if not actual.output_tokens and not actual.input_tokens:
            return
        tokens = {"prompt_tokens": actual.input_tokens, "completion_tokens": actual.output_tokens}
        newest = _Learned(
            output=float(actual.output_tokens),
            hidden=float(actual.input_tokens - estimate.raw_input),
            cost_ratio=_ratio(actual.usd, cost(estimate.model, tokens) or 0.0),
        )
        for whose in {estimate.whose, ""}:
            self._learn((estimate.model, whose), newest)

    def _learn(self, key: tuple[str, str], newest: _Learned) -> None:
        known = self._learned.setdefault(key, replace(newest))
        self._learned.move_to_end(key)
        known.output += _NEWEST * (newest.output - known.output)
        known.hidden += _NEWEST * (newest.hidden - known.hidden)
        known.cost_ratio += _NEWEST * (newest.cost_ratio - known.cost_ratio)
        if len(self._learned) > _KEPT:
            self._learned.popitem(last=False)


def tokens_of_body(raw: bytes) -> int:
    """About how many input tokens a body has; the text is searched only if files may be in it."""
    if b";base64," not in raw and b'"data"' not in raw:
        return len(raw) // BYTES_PER_TOKEN
    return body_tokens(raw)


def _maximum(body: Mapping[str, Any]) -> int | None:
    found = [as_int(body.get(name), 0) for name in _MAXIMA]
    given = [value for value in found if value > 0]
    return min(given) if given else None


def _ratio(actual: float, estimated: float) -> float:
    low, high = _RATIO
    return min(max(actual / estimated, low), high) if estimated > 0 else 1.0
