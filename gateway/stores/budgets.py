"""Budgets' accounts and reservations, and the holds by which runs are stopped or paused.

A call reserves its estimate on every account that it counts on, or on none; when it is over the
reservation is replaced by what it cost. A hold is one row for each run that is stopped or paused.
Times are seconds of the epoch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol

from msgspec import Struct

_MINUTE_S = 60.0
_TINY = 1e-9  # of a share: sums of prices are rounded to a millionth of a millionth of a dollar


@dataclass(frozen=True, slots=True, kw_only=True)
class Amounts:
    """Amounts that calls used, or are expected to use; `usd` in US dollars."""

    usd: float = 0.0
    input_tokens: int = 0
    output_tokens: int = 0
    calls: int = 0

    def __add__(self, other: Amounts) -> Amounts:
        return self._plus(other, 1)

    def __sub__(self, other: Amounts) -> Amounts:
        return self._plus(other, -1)

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
        return float(getattr(self, metric))


NOTHING = Amounts()


class AccountKey(Struct, frozen=True, kw_only=True):
    """One subject of one budget: the run `c-1.0` of the budget `per-run`."""

    budget: str
    subject: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """Amounts that one subject has used, and those reserved for its calls on their way. `limits`:
    set by an operator, by metric; `lifted`: none holds. `unpriced`: calls of unknown price.
    `estimated`: the part of `spent` that rests on estimated usage or prices. `started_at`: its
    first call."""

    budget: str
    subject: str
    tenant: str = ""
    spent: Amounts = NOTHING
    reserved: Amounts = NOTHING
    unpriced: int = 0
    estimated: Amounts = NOTHING
    started_at: float = 0.0
    updated_at: float = 0.0
    limits: Mapping[str, float] = field(default_factory=dict)
    lifted: bool = False

    @property
    def key(self) -> AccountKey:
        """The key of this account."""
        return AccountKey(budget=self.budget, subject=self.subject)

    def used(self, metric: str, now: float) -> float:
        """Spent and reserved of one metric; minutes since the first call."""
        if metric == "minutes":
            return max(0.0, now - self.started_at) / _MINUTE_S
        return self.spent.of(metric) + self.reserved.of(metric)

    def limits_of(self, configured: Mapping[str, float]) -> dict[str, float]:
        """The limits in force; none for an account that was lifted."""
        return {} if self.lifted else {**configured, **self.limits}

    def share(self, configured: Mapping[str, float], now: float) -> tuple[float, str]:
        """(share of the limit that is used most, its metric); (0, "") without a limit. Counts only
        what is spent: reserved amounts may never be."""
        limits = self.limits_of(configured).items()
        spent = replace(self, reserved=NOTHING)
        shares = [(spent.used(metric, now) / limit, metric) for metric, limit in limits]
        return max(shares, default=(0.0, ""))


class Wanted(Struct, frozen=True, kw_only=True):
    """One account that a call counts on. `stop_at`: the share from which calls are refused, None =
    never. `ends`: the account ends by itself, so that it may be removed when it is old."""

    key: AccountKey
    tenant: str
    limits: Mapping[str, float]
    stop_at: float | None
    ends: bool = False


class Claim(Struct, frozen=True, kw_only=True):
    """A call that asks for its estimate on all its accounts. `guessed`: no call like it has ended
    yet; such an estimate alone refuses nothing on an unused account. `binding`: an account may
    refuse. After `expires_at` the estimate counts as spent."""

    id: str
    at: float
    expires_at: float
    estimate: Amounts
    accounts: tuple[Wanted, ...]
    guessed: bool = False
    binding: bool = True


class Refusal(Struct, frozen=True, kw_only=True):
    """The account that refuses a claim, and the metric by which it does."""

    key: AccountKey
    metric: str


class Reserved(Struct, frozen=True, kw_only=True):
    """The accounts before the claim, in its order, and what refused it. A binding claim that was
    refused has reserved nothing."""

    accounts: tuple[Account, ...]
    refusals: tuple[Refusal, ...] = ()


class Settlement(Struct, frozen=True, kw_only=True):
    """The end of a claim. `estimated`: `actual` is, for want of a report. `reserved` False: the
    claim never reached the store."""

    claim: Claim
    actual: Amounts
    at: float
    unpriced: bool = False
    estimated: bool = False
    reserved: bool = True

    def charge(self, found: bool) -> Amounts:
        """Amounts added to an account: of an expired reservation only the difference to its
        estimate."""
        return self.actual - self._expired(found)

    def charge_estimated(self, found: bool) -> Amounts:
        """The same of the part that is estimated."""
        guessed = self.actual if self.estimated else NOTHING
        if self.unpriced and not self.estimated:
            guessed = Amounts(usd=self.actual.usd)
        return guessed - self._expired(found)

    def _expired(self, found: bool) -> Amounts:
        return NOTHING if found or not self.reserved else self.claim.estimate


def refused_by(account: Account, wanted: Wanted, claim: Claim) -> str | None:
    """The metric of an account that refuses a claim; None when there is enough for it."""
    if wanted.stop_at is None:
        return None
    for metric, limit in account.limits_of(wanted.limits).items():
        bound, used = limit * wanted.stop_at, account.used(metric, claim.at)
        asked = 0.0 if metric == "minutes" else claim.estimate.of(metric)
        slack = bound * _TINY
        known = not claim.guessed or metric in ("calls", "minutes")
        if used >= bound - slack or (used + asked > bound + slack and (known or used)):
            return metric
    return None


def waits_for_others(account: Account, wanted: Wanted, claim: Claim, metric: str) -> bool:
    """True if a refused claim would fit if only what is spent counted: calls on their way may use
    less than is reserved for them, but each is a call."""
    if metric in ("calls", "minutes"):
        return False
    without = replace(account, reserved=NOTHING)
    return refused_by(without, wanted, claim) is None


def opened(wanted: Wanted, at: float) -> Account:
    """The account of a subject that has none yet."""
    key = wanted.key
    return Account(
        budget=key.budget, subject=key.subject, tenant=wanted.tenant, started_at=at, updated_at=at
    )


def decide(accounts: Sequence[Account], claim: Claim) -> Reserved:
    """The accounts that refuse the claim, in its order."""
    pairs = zip(accounts, claim.accounts, strict=True)
    found = [(account.key, refused_by(account, wanted, claim)) for account, wanted in pairs]
    refusals = tuple(Refusal(key=key, metric=metric) for key, metric in found if metric)
    return Reserved(accounts=tuple(accounts), refusals=refusals)


def settled(account: Account, settlement: Settlement, *, found: bool) -> Account:
    """The account after a claim ended; its reservations are counted elsewhere."""
    return replace(
        account,
        spent=account.spent + settlement.charge(found),
        unpriced=account.unpriced + settlement.unpriced,
        estimated=account.estimated + settlement.charge_estimated(found),
        updated_at=settlement.at,
    )


def expired(account: Account, reserved: Amounts) -> Account:
    """The account after a reservation that no gateway has ended: its estimate counts as spent."""
    return replace(account, spent=account.spent + reserved, estimated=account.estimated + reserved)


class BudgetStore(Protocol):
    """Accounts of budgets. Every method is one atomic step for all gateways; it may raise
    StoreError, with nothing done."""

    async def reserve(self, claim: Claim) -> Reserved:
        """Reserve a claim's estimate on all its accounts, or on none when one refuses it.
        Reservations that have expired by `claim.at` are counted as spent first."""

    async def settle(self, settlement: Settlement) -> tuple[Account, ...]:
        """End a claim; the accounts after it, in the claim's order."""

    async def accounts(self, keys: Sequence[AccountKey]) -> tuple[Account, ...]:
        """The accounts with these keys, as far as there are any."""

    async def list_accounts(
        self, *, budget: str | None = None, tenant: str | None = None, limit: int = 200
    ) -> tuple[Account, ...]:
        """The accounts, last used first."""

    async def allow(
        self, key: AccountKey, *, at: float, limits: Mapping[str, float], lifted: bool
    ) -> Account:
        """Replace what an operator set for an account, which is opened if there is none."""

    async def reset(self, key: AccountKey, *, at: float) -> bool:
        """Reset an account: nothing used, the limits of the config; False without one. Calls on
        their way stay reserved."""

    async def prune(self, older_than: float) -> int:
        """Remove accounts that end by themselves and were last used before; how many."""


Action = Literal["stop", "pause"]


class Control(Struct, frozen=True, kw_only=True):
    """A hold on a run (`subject` is its id), or on a conversation and all below it. `author`: who
    ordered it, where known."""

    subject: str
    tenant: str
    action: Action
    reason: str = ""
    at: float = 0.0
    author: str = ""
