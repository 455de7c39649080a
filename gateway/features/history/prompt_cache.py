"""Input that a session paid again because the provider's prompt cache did not have it.

A call sends what the call before it sent, and more. What of that was not read from the cache was
paid at the full price once more."""

from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

from msgspec import Struct

from gateway.upstream.model_costs import capabilities
from gateway.values import Value

LIFETIME_S = 300.0  # of an entry of the cache. Source: Anthropic's and OpenAI's documentation
PAUSE = "after a pause of over 5 minutes"
COMPACTION = "after a compaction"
MODEL = "after a change of the model"
PREFIX = "without a pause (the prefix changed, or the provider lost it)"
_LEAST = 1024  # tokens; OpenAI and Anthropic cache no shorter prefix
_SHARE = 0.1  # of a prompt: less is the end that changes, or rounding to the cache's blocks
_EVERY_CALL = 0.8  # share of calls without a prefix of the one before, of a prefix that changes
_CALLS = 5  # from which on such a share says something


class Tokens(NamedTuple):
    """Tokens of calls by kind, each counted once."""

    input: int = 0  # neither read from nor written into the cache
    cache_read: int = 0  # input that the provider had cached
    cache_write: int = 0  # input that the provider cached with this call
    output: int = 0  # with those of reasoning

    @property
    def total(self) -> int:
        """All of them."""
        return sum(self)

    @property
    def prompt(self) -> int:
        """Those of the input, cached or not."""
        return self.total - self.output

    def plus(self, other: "Tokens") -> "Tokens":
        """The sum of both."""
        return Tokens(*(a + b for a, b in zip(self, other, strict=True)))


class CallCost(Struct, frozen=True, array_like=True):
    """One model call of a session."""

    key: str  # the same in every file that holds a copy of this answer; "" if unknown
    step: int  # from 0; -1 before the first
    at: float | None  # epoch seconds; None if unknown
    model: str  # as the log names it
    tokens: Tokens  # by kind, each counted once
    usd: float | None  # US dollars; None without a known price
    tools: int  # how many tools it calls


class Loss(Value):
    """Input that one call paid again."""

    step: int  # of the call, from 0
    cause: str  # one of the four above
    tokens: int  # that the call before it had sent, and this one did not read from the cache
    usd: float  # beyond what reading them from the cache costs; 0 without known prices


def losses(calls: Sequence[CallCost], compacted: Collection[int]) -> Iterator[Loss]:
    """The losses of a session whose provider caches. `compacted`: indices of the calls that are
    the first after a compaction."""
    if not any(call.tokens.cache_read or call.tokens.cache_write for call in calls):
        return
    for index in range(1, len(calls)):
        before = calls[index - 1]
        call = calls[index]
        now = call.tokens.prompt
        if not now:
            continue
        if index in compacted:
            lost = now - call.tokens.cache_read
            cause = COMPACTION
        else:
            lost = min(before.tokens.prompt, now) - call.tokens.cache_read
            cause = _cause(before, call)
        if lost >= max(_LEAST, _SHARE * now):
            yield Loss(step=call.step, cause=cause, tokens=lost, usd=_price(call, lost))


def _cause(before: CallCost, call: CallCost) -> str:
    if before.model != call.model:
        return MODEL
    if before.at is not None and call.at is not None and call.at - before.at > LIFETIME_S:
        return PAUSE
    return PREFIX


def _price(call: CallCost, tokens: int) -> float:
    model = capabilities(call.model)
    if model is None or "input" not in model.rates:
        return 0.0
    paid = model.rates["input"]
    if call.tokens.cache_write >= call.tokens.input:
        paid = model.rates.get("cache_write", paid)
    return max(0.0, tokens * (paid - model.rates.get("cache_read", paid)))


def always_changes(calls: Sequence[CallCost], found: Sequence[Loss]) -> bool:
    """True if hardly any call could use what the one before it had cached, for no other reason than
    that the beginning of the prompt changed: a clock or a random text in it, or changed tools."""
    changed = sum(loss.cause == PREFIX for loss in found)
    return len(calls) > _CALLS and changed >= _EVERY_CALL * (len(calls) - 1)
