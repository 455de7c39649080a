"""What a call is expected to use, before it is sent; learned from what earlier calls used."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from gateway.stores.budgets import Amounts
from gateway.upstream.estimates import BYTES_PER_TOKEN, body_tokens
from gateway.wire.coerce import as_int

Cost = Callable[[str, Mapping[str, Any]], float | None]
"""Model and usage -> US dollars; None for a model without a price."""

_MAXIMA = ("max_completion_tokens", "max_tokens", "max_output_tokens")
_NEWEST = 0.3
"""Weight of the newest call in the moving means: four calls make three quarters of them."""
_RATIO = (0.02, 4.0)
"""Range of a learned factor: a cached prompt costs a tenth, and tokens of code have two bytes."""
_MODELS = 1000
_CHOICES = 128  # of one chat completion. Source: OpenAI API reference, `n`
_MOST_OUTPUT = 10**9  # a client may write any number as its maximum


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """What a call to a model is expected to use.

    `guessed`: no call of the model has ended yet. `raw_input`: tokens by the length of the body.
    `full_usd`: the estimate at list price, before what was learned; None without a price.
    """

    model: str
    amounts: Amounts
    guessed: bool
    raw_input: int
    full_usd: float | None

    @property
    def unpriced(self) -> bool:
        """Whether the model has no known price."""
        return self.full_usd is None


@dataclass(slots=True)
class _Learned:
    """Moving means of one model: tokens of an answer; input and cost in relation to estimates."""

    output: float
    input_ratio: float
    cost_ratio: float


class Estimator:
    """Estimates calls by model. `first_output`: tokens expected of a model's first answer."""

    def __init__(self, first_output: int) -> None:
        self.first_output = first_output
        self._learned: OrderedDict[str, _Learned] = OrderedDict()

    def estimate(
        self, model: str, body: Mapping[str, Any], tokens: int, cost: Cost, *, most: bool
    ) -> Estimate:
        """The estimate for a body of `tokens`; `most` takes the request's own maximum of output."""
        known = self._learned.get(model)
        maximum = _maximum(body)
        usual = known.output if known else self.first_output
        if most and maximum is not None:
            output = maximum
        else:
            output = round(usual if maximum is None else min(usual, maximum))
        output = min(output * min(max(1, as_int(body.get("n"), 1)), _CHOICES), _MOST_OUTPUT)
        usage = {"prompt_tokens": tokens, "completion_tokens": output}
        full = cost(model, usage)
        amounts = Amounts(
            usd=(full or 0.0) * (known.cost_ratio if known else 1.0),
            input_tokens=round(tokens * (known.input_ratio if known else 1.0)),
            output_tokens=output,
            calls=1,
        )
        guessed = known is None and not most
        return Estimate(
            model=model, amounts=amounts, guessed=guessed, raw_input=tokens, full_usd=full
        )

    def learn(self, estimate: Estimate, actual: Amounts) -> None:
        """Note what a call used that was answered."""
        if not actual.output_tokens and not actual.input_tokens:
            return
        input_ratio = _ratio(actual.input_tokens, estimate.raw_input)
        cost_ratio = _ratio(actual.usd, estimate.full_usd or 0.0)
        known = self._learned.get(estimate.model)
        if known is None:
            output = float(actual.output_tokens)
            self._learned[estimate.model] = _Learned(output, input_ratio, cost_ratio)
            if len(self._learned) > _MODELS:
                self._learned.popitem(last=False)
            return
        known.output += _NEWEST * (actual.output_tokens - known.output)
        known.input_ratio += _NEWEST * (input_ratio - known.input_ratio)
        known.cost_ratio += _NEWEST * (cost_ratio - known.cost_ratio)


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
