"""Abilities and prices of a model, and the cost of a call; lists of models come from features."""

from collections.abc import Mapping, Sequence
from dataclasses import field
from datetime import UTC, datetime, timedelta
from typing import Protocol

from gateway.data_files import read_toml
from gateway.hooks import given
from gateway.values import Fields, Texts, frozen
from gateway.wire.usage import tokens_of

# US dollars per token by kind (see `tokens_of`); the list may have no rate for some kinds.
Rates = Mapping[str, float]
_RATES = read_toml(__package__, "rates.toml")
# Times the input's rate, where a list has a rate for shorter writes alone. Source: Anthropic's
# documentation, "Prompt caching".
_HOUR = 2.0


def charge(tokens: Mapping[str, int], rates: Rates) -> float | None:
    """US dollars for `tokens`; None without rates for input and output."""
    if not {"input", "output"} <= rates.keys():
        return None

    def rate(kind: str) -> float:
        if kind in rates:
            return rates[kind]
        if kind == "cache_write_1h" and "cache_write" in rates:
            return _HOUR * rates["input"]
        return rate(_RATES["charged_as"][kind])

    return sum(count * rate(kind) for kind, count in tokens.items())


def lost_usd(tokens: int, rates: Rates, *, written: int, written_1h: int) -> float:
    """US dollars that input tokens cost beyond what reading them from the provider's cache costs; 0
    without rates. `written`, `written_1h`: tokens of the call that it wrote into the cache, for
    minutes and for an hour. In a prompt these come in the order hour, minutes, neither."""
    hour = min(tokens, written_1h)
    minutes = min(tokens - hour, written)
    again = {"cache_write_1h": hour, "cache_write": minutes, "input": tokens - hour - minutes}
    return max(0.0, charge({**again, "cache_read": -tokens}, rates) or 0.0)


RATE_KEYS: Texts = _RATES["keys"]


# Fields of a `usage` object that name a class of service: the tier, Anthropic's fast mode, and the
# place where Anthropic computes.
_SERVICE = ("service_tier", "speed", "inference_geo")


@frozen
class Listed:
    """Properties of a model that only the list states: the config cannot change them."""

    max_output_tokens: int | None = None  # None when the list does not say
    lacks: frozenset[str] = frozenset()  # the list's flags (`supports_...`) that are false
    adaptive_thinking: bool | None = None  # Anthropic: the model decides how much it thinks
    # whether reasoning can be switched off, and may be off where a request does not say
    may_not_reason: bool = False
    # openAI: a reasoning family's model for conversations (`gpt-5-chat`)
    is_chat_tuned: bool = False
    only_responses: bool = False  # OpenAI: not offered in chat completions


@frozen
class ModelInfo:
    """One model. A capability is None when neither the list nor the config states it."""

    provider: str | None = None  # as in LiteLLM's list; None for a model that only the config knows
    max_input_tokens: int | None = None  # length of the context; None when nobody says
    tools: bool | None = None  # takes definitions of tools
    vision: bool | None = None  # takes images
    response_schema: bool | None = None  # takes a JSON schema for its answer
    reasoning: bool | None = None  # takes parameters for reasoning
    listed: Listed | None = None  # None for a model that only the config knows
    # (prompt tokens above which they apply, rates), the highest first; all have the last
    tiers: tuple[tuple[int, Rates], ...] = ((-1, {}),)
    # by the name of a class of service, factors of the usual rates, by kind
    services: Mapping[str, Rates] = field(default_factory=dict)

    @property
    def rates(self) -> Rates:
        """The rates of a short prompt."""
        return self.tiers[-1][1]

    def cost(self, usage: Fields) -> float | None:
        """Cost of a call in US dollars; None when the model has no prices per token. `usage` may
        have the form of OpenAI's chat completions or Responses, or Anthropic's. Tokens read from
        and written to the provider's cache are charged as such, where the list has the rates; the
        rates of long prompts, and of a class of service, apply to the whole call."""
        return self.cost_of_tokens(tokens_of(usage), [str(usage.get(name)) for name in _SERVICE])

    def cost_of_tokens(
        self, tokens: Mapping[str, int], services: Sequence[str] = ()
    ) -> float | None:
        """The same for tokens as `tokens_of` gives them, and names of classes of service."""
        prompt = sum(tokens[kind] for kind in _RATES["of_prompt"])
        rates = next(rates for above, rates in self.tiers if prompt > above)
        for name in services:
            factors = self.services.get(name, {})
            rates = {kind: rate * factors.get(kind, 1.0) for kind, rate in rates.items()}
        return charge(tokens, rates)


class ModelList(Protocol):
    """Looks models up."""

    # the day of its prices as `date`, YYYY-MM-DD; for people their `source`, and the `file` of a
    # list that is kept
    about: Fields

    def capabilities(self, model: str) -> ModelInfo | None:
        """The entry of a model, `provider/name` or a bare name; None for one the list lacks."""

    def relative(self, model: str) -> tuple[str, ModelInfo] | None:
        """(name, entry) of the relative with a price whose name is most like that of a model which
        the list lacks; None without one."""


_IN_USE: list[ModelList | None] = []


def use_list(kept: str = "") -> ModelList | None:
    """Use from now on the list that a feature gives. `kept`: the file where a newer one may be."""
    _IN_USE[:] = [read(kept) for read in given("models")] or [None]
    return _IN_USE[0]


def default_list() -> ModelList | None:
    """The list in use; None without one."""
    if _IN_USE:
        return _IN_USE[0]
    return use_list()


def age_note() -> str:
    """A sentence for whoever reads dollars, if the list in use is older than 60 days; "" else."""
    prices = default_list()
    oldest = str(datetime.now(UTC).date() - timedelta(days=60))
    if prices is None or prices.about["date"] >= oldest:
        return ""
    return f"Dollars at prices of {prices.about['date']}, over 60 days old: gateway prices update."


def capabilities(model: str) -> ModelInfo | None:
    """The entry of `model` in that list; None when it is unknown."""
    prices = default_list()
    if prices is None:
        return None
    return prices.capabilities(model)
