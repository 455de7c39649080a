"""Input that a session paid again because the provider's prompt cache did not have it.

A call sends what the call before it sent, and more. What of that was not read from the cache was
paid at the full price once more. After a compaction that is all of its input, though the summary
in it is new."""

from collections.abc import Collection, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from msgspec import Struct

from gateway.calls.prompt_cache import HOUR_S, LEAST, LIFETIME_S, SHARE
from gateway.features.history.session import Floor, ModelCall
from gateway.upstream.model_costs import capabilities, lost_usd
from gateway.wire.usage import Loss

PAUSE = "after a long pause (over 5 minutes; over an hour where it was cached for one)"
COMPACTION = "after a compaction"
MODEL = "after a change of the model"
PREFIX = "without a long pause (the prefix changed, or the provider lost it)"
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
        return Tokens(*map(sum, zip(self, other, strict=True)))


class CallCost(Struct, frozen=True, array_like=True):
    """One model call of a session."""

    key: str  # the same in every file that holds a copy of this answer; "" if unknown
    step: int  # from 0; -1 before the first
    at: float | None  # epoch seconds; None if unknown
    model: str  # as the log names it
    tokens: Tokens  # by kind, each counted once
    usd: float | None  # US dollars; None without a known price
    written_1h: int = 0  # tokens of those written into the cache that it keeps for an hour
    at_least: Floor = ""  # what the log has only a part of


class StepLoss(Loss):
    """Input that one call of a session paid again; its cause is one of the four above."""

    step: int  # of the call, from 0


def losses(
    calls: Sequence[CallCost], made: Sequence[ModelCall], compacted: Collection[int]
) -> Iterator[StepLoss]:
    """The losses of a session whose provider caches. `made`: the same calls, as they were read.
    `compacted`: indices of the calls that are the first after a compaction."""
    if not any(call.tokens.cache_read or call.tokens.cache_write for call in calls):
        return
    kept_s = LIFETIME_S
    for index, (before, call) in enumerate(pairwise(calls), 1):
        if before.written_1h:
            kept_s = HOUR_S
        elif before.tokens.cache_write:
            kept_s = LIFETIME_S
        now = call.tokens.prompt
        sent = before.tokens.prompt
        cause = PREFIX
        if index in compacted:
            sent = now
            cause = COMPACTION
        elif before.model != call.model:
            cause = MODEL
        elif made[index].waited > kept_s:
            cause = PAUSE
        lost = min(sent, now) - call.tokens.cache_read
        if lost >= max(LEAST, SHARE * now):
            yield StepLoss(step=call.step, cause=cause, tokens=lost, usd=_price(call, lost))


def _price(call: CallCost, tokens: int) -> float:
    model = capabilities(call.model)
    if model is None:
        return 0.0
    written = call.tokens.cache_write - call.written_1h
    return lost_usd(tokens, model.rates, written=written, written_1h=call.written_1h)


def always_changes(calls: Sequence[CallCost], found: Sequence[StepLoss]) -> bool:
    """True if hardly any call could use what the one before it had cached, for no other reason than
    that the beginning of the prompt changed: a clock or a random text in it, or changed tools."""
    changed = sum(loss.cause == PREFIX for loss in found)
    return len(calls) > _CALLS and changed >= _EVERY_CALL * (len(calls) - 1)
