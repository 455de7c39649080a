"""The questions about what calls use, which the feature of budgets answers. Without it nothing is
counted, and nothing is refused for what it costs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Protocol

from gateway.config import Settings
from gateway.config.control import Ending
from gateway.errors import NotFound, RunRefused
from gateway.steering.sub_agents import NOBODY, SubAgent
from gateway.stores.controls import OpenQuestion
from gateway.values import FieldDict, Fields, Value, frozen
from gateway.wire.headers import RawHeaders

if TYPE_CHECKING:
    from gateway.core.steer import Advice
    from gateway.exchange import Exchange

# Model and usage -> US dollars; None for a model without a price.
Cost = Callable[[str, Fields], "float | None"]
# Asks a person the question, for the reason, and waits. Raises: RunRefused: the answer is no.
Ask = Callable[["tuple[str, OpenQuestion]"], Awaitable[None]]


UNSUMMED = frozenset({"minutes", "context"})  # limits of what calls do not add up to


@frozen
class Amounts:
    """Amounts that calls used, or are expected to use."""

    usd: float = 0.0  # US dollars
    input_tokens: int = 0  # with cached ones
    output_tokens: int = 0  # with those of reasoning
    calls: int = 0  # sent upstream

    def __add__(self, other: Amounts) -> Amounts:
        return self._plus(other, 1)

    def __sub__(self, other: Amounts) -> Amounts:
        return self._plus(other, -1)

    def __mul__(self, times: int) -> Amounts:
        return NOTHING._plus(self, times)

    def most(self, other: Amounts) -> Amounts:
        """The higher of each amount."""
        names = [each.name for each in fields(self)]
        return Amounts(**{name: max(getattr(self, name), getattr(other, name)) for name in names})

    def _plus(self, other: Amounts, sign: int) -> Amounts:
        return Amounts(
            usd=self.usd + sign * other.usd,
            input_tokens=self.input_tokens + sign * other.input_tokens,
            output_tokens=self.output_tokens + sign * other.output_tokens,
            calls=self.calls + sign * other.calls,
        )

    def of(self, metric: str) -> float:
        """The amount that a limit's name stands for."""
        if metric == "tokens":
            return self.input_tokens + self.output_tokens
        if metric in UNSUMMED:
            return 0.0
        return float(getattr(self, metric))


NOTHING = Amounts()


class CallSubject(Value):
    """Owner of a call. The empty ones count on no budget of theirs."""

    tenant: str  # "" for the gateway's own calls
    key: str = ""  # name of the gateway key
    client: str = ""  # first word of the user agent
    model: str = ""  # that the client names
    run: str = ""  # "" for a call without conversation
    root: str = ""  # root of the conversation's tree; "" for a call without conversation
    agent: SubAgent = NOBODY  # the sub-agent that makes it
    # `team` and `owner` of the key, and the tags of the run as `tag:NAME`
    labels: Mapping[str, str] = {}


class CallBody(Value):
    """Parts of a request that an estimate reads."""

    fields: Fields  # of the body, parsed
    raw: bytes  # the body's bytes; their number gives the input tokens
    answers: bool = True  # the model writes an answer
    calls: int = 1  # how many a request counts as
    counted: str = "answer"  # the list of `routes.toml` that the route is in; "" for none
    route: str = ""  # path below `/v1`


class Refused(Exception):
    """A budget lets a call go no further; `error` is how it is answered, or `ending` otherwise."""

    reports: bool = False  # a sub-agent's last answer is a report of what it has done

    def __init__(self, error: RunRefused, ending: Ending):
        super().__init__(error.message)
        self.error = error
        self.ending = ending


class Spending(Protocol):
    """The reservation of one call, until it has ended."""

    sent: bool  # an upstream was asked
    answered: bool  # an upstream gave an answer

    async def settle(self, model: str) -> None:
        """End the reservation with what the call used, at the prices of `model`; once."""

    async def extend(self, model: str, body: CallBody, *, binding: bool) -> bool:
        """Reserve what a call to another model costs more; False when that is too much."""

    def hand_over(self) -> list[FieldDict]:
        """JSON values for `left_open`. What is reserved in memory only is reserved no more."""


class PassedOn(Protocol):
    """The reservation of a call that is passed on unread."""

    async def answer_of(self, sending: Awaitable[Any], share: Any) -> Any:
        """The answer, which ends the reservation when it has been read. `share`: the room that the
        request has; the answer is held beside it."""

    async def count(self) -> None:
        """End the reservation as one call of unknown use."""


class Guard(Protocol):
    """The budgets of one version of the config."""

    budgets: Sequence[Any]  # those of the config
    of_keys: Mapping[tuple[str, str], Sequence[Any]]  # of gateway keys, by tenant and name

    async def advise(self, subject: CallSubject, body: CallBody) -> Advice:
        """The effects of the budgets on a call before it is decided."""

    async def reserve(
        self,
        subject: CallSubject,
        model: str,
        body: CallBody,
        exchange: Exchange,
        *,
        binding: bool,
        ask: Ask | None,
        note: Callable[[str], None],
    ) -> Spending | None:
        """Reserve a call to `model`; None if it counts on no budget. `binding` False: nothing is
        refused, and `note` gets what would have been. `ask`: None: no person can be asked. Raises:
        Refused; nothing is reserved."""

    def left_open(self, values: list[Fields], exchange: Exchange) -> Spending:
        """The reservation of another process's call."""

    def counted_how(self, method: str, path: str, headers: RawHeaders) -> str:
        """The way in which a call that is passed on is counted; `free`: not at all."""

    async def pass_on(
        self, services: Any, exchange: Exchange, call: Any, body: CallBody
    ) -> PassedOn | None:
        """Reserve an `UpstreamCall` that is passed on. Returns None if it is free or counts on no
        budget. Raises: RunRefused: a budget has not enough left, or is hard and cannot count it."""

    async def admit(
        self, subject: CallSubject, model: str, body: CallBody, *, binding: bool
    ) -> Any | None:
        """Reserve a call of the gateway's own; None if it counts on no budget. Raises: Refused."""

    async def extend(self, admission: Any, model: str, body: CallBody, *, binding: bool) -> bool:
        """Reserve what a call to another model costs more; False when that is too much."""

    async def settle(
        self, admission: Any, actual: Amounts | None, *, unpriced: bool = False
    ) -> None:
        """End a call of the gateway's own; `actual` None: its estimate counts."""


class OwnCall:
    """A call of the gateway's own that may be made. This one counts on no budget."""

    def settle(self, usage: Fields | None) -> None:
        """Note the end of the call. `usage`: None when it is unknown, so that the estimate counts;
        empty for a call that failed."""


class OwnCalls:
    """Counts tokens and dollars of the gateway's own calls, not the calls: those are the agents'.
    This one lets every call pass."""

    async def admit(
        self,
        model: str,
        asked: str,
        *,
        answers: bool = True,
        tenant: str = "",
        root: str = "",
        run: str = "",
    ) -> OwnCall | None:
        """A call that may be made; None when a budget has not enough left for it. `answers`: the
        model writes an answer. Without a tenant the call counts on the budgets of a day alone."""
        return OwnCall()


@frozen
class UsedAccount:
    """One subject of a budget and its most used limit."""

    budget: str  # name of the budget in the config
    scope: str  # what the budget counts together
    subject: str  # the one that is counted
    tenant: str  # owner of the subject; "" for a budget over all
    used: float  # share of the limit, 1 = all of it
    metric: str  # that limit
    estimated: bool = False  # the share rests on estimates
    unpriced: int = 0  # calls in it whose price is unknown


class ForgedAccount(UsedAccount):
    """An account whose limits were set without the admin key."""


class Accounting:
    """The use of calls in one process. This class counts nothing."""

    own_calls: OwnCalls = OwnCalls()

    def __init__(self, **_opened: Any) -> None:
        """Takes what the class of the feature takes."""

    def guard(self, settings: Settings, cost: Cost) -> Guard | None:
        """The guard of the budgets in these settings, and of the keys."""
        return None

    async def follow(self) -> None:
        """Write what waits, and remove old accounts, without end."""

    async def close(self) -> None:
        """Give back everything that is not used."""

    async def used(self, since: float) -> list[UsedAccount]:
        """Every account that was used at or after `since` (epoch) and has a limit. Raises:
        StoreError."""
        return []

    async def views(self, tenant: str | None, limit: int) -> list[FieldDict]:
        """The accounts last used, as the API shows them. Raises: StoreError."""
        return []

    async def allow(
        self, budget: str, subject: str, *, limits: Mapping[str, float], lifted: bool | None
    ) -> Any:
        """Set what an operator allows an account; the account afterwards. Raises: NotFound;
        BadRequest."""
        raise NotFound("this gateway has no budgets", param="budget")

    async def views_of(self, subjects: Sequence[str], limit: int) -> list[FieldDict]:
        """The accounts of runs and of trees of conversations. Raises: StoreError."""
        return []
