"""Budgets' accounts and reservations, and the holds by which runs are stopped or paused.

A call reserves its estimate on every account that it counts on, or on none; when it is over the
reservation is replaced by what it cost. A gateway reserves from its lease of an account: an amount
that it has taken there for the next calls. Spent and leased never exceed the limit. A hold is one
row for each run that is stopped or paused.
Times are seconds of the epoch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from functools import partial

from msgspec import structs

from gateway.budget_interface import NOTHING, UNSUMMED, Amounts
from gateway.values import Value, frozen

_MINUTE_S = 60.0
_SHARE = 4  # a lease takes so large a part of what is left at most
_TINY = 1e-9  # of a share: sums of prices are rounded to a millionth of a millionth of a dollar


class AccountKey(Value):
    """One subject of one budget: the run `c-1.0` of the budget `per-run`."""

    budget: str  # name of the budget in the config
    subject: str  # what it counts: a run, key, day, ...


@frozen
class Account:
    """The use of one subject of a budget."""

    budget: str  # name of the budget in the config
    subject: str  # what it counts: a run, key, day, ...
    tenant: str = ""  # owner of the subject; "" for a budget over all
    spent: Amounts = NOTHING  # by calls that have ended
    reserved: Amounts = NOTHING  # for calls on their way, by their estimates
    leased: Amounts = NOTHING  # taken by gateways for calls to come
    unpriced: int = 0  # calls of unknown price; their cost is in no sum
    estimated: Amounts = NOTHING  # the part of `spent` that rests on estimated usage or prices
    started_at: float = 0.0  # epoch seconds of its first call
    updated_at: float = 0.0  # epoch seconds of its last change
    # set by an operator in place of the config's, by metric
    limits: Mapping[str, float] = field(default_factory=dict)
    lifted: bool = False  # no limit holds
    mac: str = ""  # of what an operator set, under the admin key, so that a changed row is noticed
    forged: bool = False  # `mac` is not valid, so that what was set does not hold

    @property
    def key(self) -> AccountKey:
        """The key of this account."""
        return AccountKey(budget=self.budget, subject=self.subject)

    def used(self, metric: str, now: float) -> float:
        """Spent, reserved and leased of one metric; minutes since the first call."""
        if metric == "minutes":
            return max(0.0, now - self.started_at) / _MINUTE_S
        return self.spent.of(metric) + self.reserved.of(metric) + self.leased.of(metric)

    def limits_of(self, configured: Mapping[str, float]) -> dict[str, float]:
        """The limits in force; none for an account that was lifted."""
        if self.forged:
            return dict(configured)
        if self.lifted:
            return {}
        return {**configured, **self.limits}

    def share(self, configured: Mapping[str, float], now: float) -> tuple[float, str]:
        """(share of the limit that is used most, its metric); (0, "") without a limit. Counts only
        what is spent: reserved amounts may never be."""
        limits = self.limits_of(configured).items()
        spent = replace(self, reserved=NOTHING, leased=NOTHING)
        shares = [(spent.used(metric, now) / limit, metric) for metric, limit in limits]
        return max(shares, default=(0.0, ""))


class Wanted(Value):
    """One account that a call counts on."""

    key: AccountKey  # budget and subject
    tenant: str  # owner of the subject; "" for a budget over all
    limits: Mapping[str, float]  # the most per metric, by the config
    stop_at: float | None  # share of a limit from which calls are refused; None = never
    ends: bool = False  # the account ends by itself, so that it may be removed when it is old
    hard: bool = False  # no call is counted in memory alone, though the store be away


class Claim(Value):
    """A call that asks for its estimate on all its accounts."""

    id: str  # unique; the settlement names it
    at: float  # epoch seconds of the call
    estimate: Amounts  # expected use, from earlier calls like it
    accounts: tuple[Wanted, ...]  # every account that it counts on
    # no call like it has ended yet; such an estimate alone refuses nothing on an unused account
    guessed: bool = False
    binding: bool = True  # an account may refuse; False in modes that only count
    # the gateway from whose leases it was reserved; "" = nothing is reserved any more
    lease: str = ""


STORE_AWAY = "store"  # what refuses a call on a hard budget while the store fails


class Refusal(Value):
    """The account that refuses a claim."""

    key: AccountKey  # budget and subject
    metric: str  # the limit that it would exceed, or STORE_AWAY


class Lease(Value):
    """Amounts of an account that one gateway holds."""

    until: float  # epoch seconds; after that they count as spent
    number: int  # of its last renewal; an older one is not applied again
    open: Amounts = NOTHING  # reserved for the gateway's calls on their way
    free: Amounts = NOTHING  # for calls to come
    ended: Amounts = NOTHING  # of its calls that other gateways have ended so far

    @property
    def held(self) -> Amounts:
        """Both together."""
        return self.open + self.free

    def without(self, calls: Amounts) -> Lease:
        """The lease after another gateway has ended these calls. They may have been taken from
        what was free at the last renewal."""
        rest = self.open - calls
        free = self.free - (NOTHING - rest).most(NOTHING)
        return structs.replace(
            self, open=rest.most(NOTHING), free=free.most(NOTHING), ended=self.ended + calls
        )


class Report(Value):
    """Use of one account that the store does not know yet."""

    spent: Amounts = NOTHING  # by calls that have ended since the last report
    estimated: Amounts = NOTHING  # the part of `spent` that is estimated
    unpriced: int = 0  # calls of unknown price, whose cost counts as 0 or is estimated
    # estimates of ended calls that other gateways had reserved, by the gateway
    moved: Mapping[str, Amounts] = {}

    def plus(self, other: Report, sign: int = 1) -> Report:
        """Both together; with -1 without what the other one has."""
        moved = dict(self.moved)
        for name, amounts in other.moved.items():
            moved[name] = moved.get(name, NOTHING) + amounts * sign
        return Report(
            spent=self.spent + other.spent * sign,
            estimated=self.estimated + other.estimated * sign,
            unpriced=self.unpriced + other.unpriced * sign,
            moved={name: amounts for name, amounts in moved.items() if amounts != NOTHING},
        )


class Wish(Value):
    """Calls for which a gateway would like to have more."""

    each: Amounts = NOTHING  # expected use of one call
    calls: int = 0  # how many it would like to be able to admit
    waiting: int = 0  # how many of them are waiting for an answer
    guessed: bool = False  # `each` is no estimate from calls like them


class Renewal(Value):
    """Report and wish of one gateway about one account. Sent again with the same number it
    changes nothing."""

    wanted: Wanted  # the account and its limits
    lease: str  # id of the gateway
    holds: Lease  # its lease, if the wish is not granted
    had: Amounts = NOTHING  # amounts held until now
    report: Report = Report()  # use since the last renewal
    wish: Wish = Wish()  # what it would like to hold from now on


class Stored(Value):
    """An account as it is stored."""

    account: Account  # with nothing in `reserved` and `leased`, which are in its leases
    leases: Mapping[str, Lease] = {}  # by the id of the gateway
    ends: bool = False  # the account ends by itself, so that it may be removed when it is old
    version: int = 0  # counts the writes; a write names the one that it replaces

    def seen(self, by: str = "") -> Account:
        """Returns the account with the amounts that gateways hold. `by`: leaves out what this
        gateway holds."""
        others = [lease for name, lease in self.leases.items() if name != by]
        return replace(
            self.account,
            reserved=sum((lease.open for lease in others), NOTHING),
            leased=sum((lease.free for lease in others), NOTHING),
        )


def refused_by(account: Account, wanted: Wanted, claim: Claim) -> str | None:
    """The metric of an account that refuses a claim; None when there is enough for it."""
    if wanted.stop_at is None:
        return None
    for metric, limit in account.limits_of(wanted.limits).items():
        bound = limit * wanted.stop_at
        used = account.used(metric, claim.at)
        asked = claim.estimate.of(metric)
        if metric == "context":
            asked = claim.estimate.input_tokens
        if not asked and not claim.estimate.calls:
            continue  # more for a call that has its place already
        slack = bound * _TINY
        known = not claim.guessed or metric in ("calls", "minutes", "context")
        if used >= bound - slack or (used + asked > bound + slack and (known or used)):
            return metric
    return None


def waits_for_others(account: Account, wanted: Wanted, claim: Claim, metric: str) -> bool:
    """True if a refused claim would fit if only what is spent counted: calls on their way may use
    less than is reserved for them, but each is a call; leases may be given back."""
    if metric in (*UNSUMMED, STORE_AWAY):
        return False
    reserved = NOTHING
    if metric == "calls":
        reserved = account.reserved
    return refused_by(replace(account, reserved=reserved, leased=NOTHING), wanted, claim) is None


def opened(wanted: Wanted, at: float) -> Account:
    """The account of a subject that has none yet."""
    key = wanted.key
    return Account(
        budget=key.budget, subject=key.subject, tenant=wanted.tenant, started_at=at, updated_at=at
    )


def refusals_of(accounts: Sequence[Account], claim: Claim) -> tuple[Refusal, ...]:
    """The accounts that refuse the claim, in its order; none for one that is admitted."""
    return tuple(
        Refusal(key=account.key, metric=metric)
        for account, wanted in zip(accounts, claim.accounts, strict=True)
        if (metric := refused_by(account, wanted, claim))
    )


def granted(account: Account, wanted: Wanted, asked: Wish) -> Amounts:
    """Addition to a lease, in whole calls: a quarter of what is left at most, but all that wait if
    there is room for them."""
    if wanted.stop_at is None:
        return NOTHING
    calls = asked.calls
    limits = account.limits_of(wanted.limits)
    for metric, limit in limits.items():
        each = asked.each.of(metric)
        if each > 0:
            used = account.used(metric, 0.0)
            bound = limit * wanted.stop_at
            fitting = max(0, int((bound * (1 + _TINY) - used) / each))
            if asked.guessed and metric != "calls" and used <= 0:
                fitting = max(1, fitting)
            calls = min(calls, max(fitting // _SHARE, min(fitting, asked.waiting)))
    if limits:
        return asked.each * calls
    return NOTHING


def renewed(asked: Renewal, at: float, found: Stored | None) -> Stored:
    """The account after a renewal. Leases whose gateway has not renewed them in time count as
    spent; what that gateway reports later only corrects it."""
    wanted = asked.wanted
    report = asked.report
    holds = asked.holds
    found = found or Stored(account=opened(wanted, at), ends=wanted.ends)
    account = found.account
    leases = {}
    for name, lease in found.leases.items():
        if lease.until < at:
            account = charged(account, lease.held, lease.held)
        else:
            leases[name] = lease
    mine = leases.pop(asked.lease, None)
    if mine is not None and mine.number == asked.holds.number:
        return structs.replace(found, account=account, leases={**leases, asked.lease: mine})
    counted = NOTHING
    if mine is None:
        counted = asked.had
    else:
        # Of these its gateway does not know yet.
        holds = holds.without((mine.ended - holds.ended).most(NOTHING))
    for name, amounts in report.moved.items():
        if name in leases:
            leases[name] = leases[name].without(amounts)
        else:
            counted += amounts
    account = charged(account, report.spent - counted, report.estimated - counted)
    account = replace(account, unpriced=account.unpriced + report.unpriced, updated_at=at)
    others = structs.replace(found, account=account, leases=leases).seen()
    others = replace(others, reserved=others.reserved + holds.held)
    mine = structs.replace(holds, free=holds.free + granted(others, wanted, asked.wish))
    return structs.replace(found, account=account, leases={**leases, asked.lease: mine})


def charged(account: Account, spent: Amounts, estimated: Amounts) -> Account:
    """The account after more was spent; `estimated`: the part that nobody reported."""
    return replace(account, spent=account.spent + spent, estimated=account.estimated + estimated)


Change = Callable[[Stored | None], Stored]


class BudgetStore(ABC):
    """Accounts of budgets. Each change of an account is one atomic step for all gateways. A method
    may raise StoreError; a renewal that was done nevertheless is known by its number."""

    @abstractmethod
    async def change(self, changes: Mapping[AccountKey, Change]) -> Mapping[AccountKey, Stored]:
        """Replace accounts by what the functions make of them; they may be called again."""

    async def renew(self, asked: Sequence[Renewal], at: float) -> Sequence[Stored]:
        """Renew leases, each of another account. Returns the accounts after that."""
        changes = {r.wanted.key: partial(renewed, r, at) for r in asked}
        found = await self.change(changes)
        return [found[each.wanted.key] for each in asked]

    @abstractmethod
    async def accounts(self, keys: Sequence[AccountKey]) -> tuple[Account, ...]:
        """The accounts with these keys, as far as there are any."""

    @abstractmethod
    async def list_accounts(
        self, *, budget: str | None = None, tenant: str | None = None, limit: int = 200
    ) -> tuple[Account, ...]:
        """The accounts, last used first."""

    def signed(self, account: Account) -> Account:
        """The account with a MAC of what an operator has set now, where the store has a secret."""
        return account

    async def allow(
        self, key: AccountKey, *, at: float, limits: Mapping[str, float], lifted: bool | None
    ) -> Account:
        """Set limits of an account; the account is opened if it does not exist. Limits that are
        left out stay as they are, and so does `lifted` if it is None."""

        def change(found: Stored | None) -> Stored:
            new = Account(budget=key.budget, subject=key.subject, started_at=at)
            found = found or Stored(account=new)
            account = found.account
            if account.forged:
                account = replace(account, limits={}, lifted=False)
            lifts = account.lifted if lifted is None else lifted
            given = {**account.limits, **limits}
            account = replace(account, limits=given, lifted=lifts, updated_at=at)
            return structs.replace(found, account=self.signed(account))

        return (await self.change({key: change}))[key].seen()

    async def reset(self, key: AccountKey, *, at: float) -> bool:
        """Reset an account: nothing used, the limits of the config; False without one. Calls on
        their way stay reserved."""
        if not await self.accounts([key]):
            return False

        def change(found: Stored | None) -> Stored:
            fresh = Account(budget=key.budget, subject=key.subject, started_at=at, updated_at=at)
            found = found or Stored(account=fresh)
            own = replace(fresh, tenant=found.account.tenant)
            return structs.replace(found, account=self.signed(own))

        await self.change({key: change})
        return True

    @abstractmethod
    async def prune(self, older_than: float) -> int:
        """Remove accounts that end by themselves and were last used before; how many."""
