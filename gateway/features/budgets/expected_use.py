"""Expected use of a call before it is sent, learned from earlier calls."""

from collections.abc import Callable

from cachetools import FIFOCache
from msgspec import Struct

from gateway.budget_interface import Amounts
from gateway.values import Fields, Value
from gateway.wire.coerce import as_int

# Model and usage -> US dollars; None for a model without a price.
Cost = Callable[[str, Fields], float | None]
_MAXIMA = ("max_completion_tokens", "max_tokens", "max_output_tokens")
# Weight of the newest call in the moving means: four calls make three quarters of them.
_NEWEST = 0.3
# Range of what a call costs in relation to list price: a cached prompt costs a tenth.
_RATIO = (0.02, 4.0)
_KEPT = 5000  # of what was learned: the newest; one costs 200 bytes
_CHOICES = 128  # of one chat completion. Source: OpenAI API reference, `n`
_MOST_OUTPUT = 10**9  # a client may write any number as its maximum


class Estimate(Value):
    """Expected use of a call to a model."""

    model: str  # whose calls it was learned from
    whose: str  # tree of conversations of the call; "" for none
    amounts: Amounts  # what is expected
    guessed: bool  # no call of that tree to the model has ended yet
    raw_input: int  # tokens by the length of the body
    unpriced: bool  # the model has no known price


class _Learned(Struct, frozen=True):
    """Moving means over the calls of a model."""

    output: float  # tokens of an answer
    # input tokens that the body's length does not show, such as a history that the provider stores
    hidden: float
    cost_ratio: float  # cost in relation to list price; a cached prompt makes it small


# Tokens that few answers pass. Clients ask for far more than they use: Claude Code for 64,000 of a
# title.
_LONG_ANSWER = 4096


class Estimator:
    """Estimates calls by their model, and by their tree once that had a call. `first_output`:
    tokens expected of a model's first answer."""

    def __init__(self, first_output: int):
        self.first_output = first_output
        self._learned: FIFOCache[tuple[str, str], _Learned] = FIFOCache(_KEPT)

    def estimate(
        self,
        model: str,
        whose: str,
        body: Fields,
        tokens: int,
        cost: Cost,
        *,
        most: bool = False,
        answers: bool = True,
    ) -> Estimate:
        """The estimate for a body of `tokens`; `most` takes the request's own maximum of output."""
        own = self._learned.get((model, whose))
        known = own or self._learned.get((model, ""))
        given = [value for name in _MAXIMA if (value := as_int(body.get(name), 0)) > 0]
        maximum = min(given, default=None)
        if known:
            output = known.output
        else:
            output = float(self.first_output)
        if maximum is not None:
            if known:
                usual = known.output
            else:
                usual = float(max(self.first_output, _LONG_ANSWER))
            if most:
                output = maximum
            else:
                output = min(usual, maximum)
        choices = min(max(1, as_int(body.get("n"), 1)), _CHOICES)
        output_tokens = 0
        if answers:
            output_tokens = round(min(output * choices, _MOST_OUTPUT))
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
        full = cost(estimate.model, tokens) or 0.0
        low, high = _RATIO
        ratio = 1.0
        if full > 0:
            ratio = min(max(actual.usd / full, low), high)
        hidden = float(actual.input_tokens - estimate.raw_input)
        newest = _Learned(float(actual.output_tokens), hidden, ratio)
        for key in {(estimate.model, estimate.whose), (estimate.model, "")}:
            known = self._learned.get(key, newest)
            self._learned[key] = _Learned(
                output=known.output + _NEWEST * (newest.output - known.output),
                hidden=known.hidden + _NEWEST * (newest.hidden - known.hidden),
                cost_ratio=known.cost_ratio + _NEWEST * (newest.cost_ratio - known.cost_ratio),
            )
