"""Reserves calls from leases, which it takes in the store and renews there for many calls together.

A call that fits into the leases of all its accounts costs no statement. What was spent is reported
with the next renewal. While the store fails, calls that need more than the leases hold are counted
by what was last seen, without other gateways' calls; hard budgets refuse them."""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from secrets import token_hex

from cachetools import FIFOCache
from msgspec import structs

from gateway.budget_interface import NOTHING, UNSUMMED, Amounts
from gateway.features.budgets.accounts import (
    STORE_AWAY,
    Account,
    AccountKey,
    BudgetStore,
    Change,
    Claim,
    Lease,
    Refusal,
    Renewal,
    Report,
    Stored,
    Wanted,
    Wish,
    opened,
    refusals_of,
    refused_by,
)
from gateway.features.budgets.settings import BudgetControl
from gateway.observability.logging import get_logger
from gateway.stores.protocols import StoreError
from gateway.tasks import spawn
from gateway.values import Value

_MOST_ACCOUNTS = 20_000  # the accounts last used; one costs about 1 kB
_MOST_CALLS = 100  # for which one lease is taken
_FIRST_CALLS = 2
_AT_ONCE = 32  # leases that are renewed together
_SOON_S = 1.0  # a lease that is used up within it was too small
_LEAST_USD = 1e-6  # more than the store rounds off
_log = get_logger("gateway.budgets")


class MemoryBudgets(BudgetStore):
    """`BudgetStore` that ends with the process."""

    def __init__(self) -> None:
        self._stored: FIFOCache[AccountKey, Stored] = FIFOCache(_MOST_ACCOUNTS)

    async def change(self, changes: Mapping[AccountKey, Change]) -> Mapping[AccountKey, Stored]:
        found = {key: change(self._stored.get(key)) for key, change in changes.items()}
        self._stored.update(found)
        return found

    async def accounts(self, keys: Sequence[AccountKey]) -> tuple[Account, ...]:
        return tuple([self._stored[key].seen() for key in keys if key in self._stored])

    async def list_accounts(
        self, *, budget: str | None = None, tenant: str | None = None, limit: int = 200
    ) -> tuple[Account, ...]:
        return _listed([each.seen() for each in self._stored.values()], budget, tenant, limit=limit)

    async def prune(self, older_than: float) -> int:
        old = [
            key
            for key, each in self._stored.items()
            if each.ends
            and each.account.updated_at < older_than
            and all(lease.until < older_than for lease in each.leases.values())
        ]
        for key in old:
            del self._stored[key]
        return len(old)


def _listed(
    found: Sequence[Account], budget: str | None, tenant: str | None, limit: int
) -> tuple[Account, ...]:
    wanted = [a for a in found if budget in (None, a.budget) and tenant in (None, a.tenant)]
    return tuple(sorted(wanted, key=lambda each: -each.updated_at)[:limit])


class Held(Value):
    """A claim that was decided. A binding one that was refused has reserved nothing."""

    claim: Claim  # the estimate on all accounts of a call
    accounts: tuple[Account, ...] = ()  # as they were before the claim, in its order
    refusals: tuple[Refusal, ...] = ()  # empty for a claim that was admitted
    stored: bool  # within leases of the store; else in memory only


class _OwnLease:
    """One account at this gateway: as the store had it, its lease, and what happened since."""

    def __init__(self, wanted: Wanted, at: float):
        self.wanted = wanted
        self.account = opened(wanted, at)  # without what is held here
        self.seen_at = -1e9
        self.until = 0.0
        self.had = NOTHING  # in the store
        self.usable = NOTHING  # the same, without what is being given back
        self.open = NOTHING
        self.ended = NOTHING  # of its calls by other gateways, as far as `open` is without them
        self.report = Report()
        self.own = NOTHING  # spent here since the account began: the store never has less
        self.sending: Renewal | None = None
        self.number = 0
        self.each = NOTHING
        self.waiting: list[Claim] = []
        self.used = self.asks = self.short = False
        self.calls = _FIRST_CALLS
        self.asked_at = 0.0

    @property
    def free(self) -> Amounts:
        """The part of the lease that no call has."""
        return self.usable - self.open - self.report.spent.most(NOTHING)

    @property
    def dirty(self) -> bool:
        """True if the store is to know more."""
        return self.used or self.sending is not None or self.report != Report()

    def view(self) -> Account:
        """The account as this gateway knows it, without what it has free."""
        known = self.account
        more = self.report
        return replace(
            known,
            spent=known.spent + more.spent,
            reserved=known.reserved + self.open,
            estimated=known.estimated + more.estimated,
            unpriced=known.unpriced + more.unpriced,
        )

    def covers(self, claim: Claim, fresh_since: float) -> bool:
        """True if the claim may be taken from the lease."""
        if self.seen_at < fresh_since or refused_by(self.view(), self.wanted, claim):
            return False
        if self.wanted.stop_at is None:
            return True
        free = NOTHING
        if self.until > claim.at:
            free = self.free
        limits = self.account.limits_of(self.wanted.limits)
        return all(
            claim.estimate.of(m) <= max(0.0, free.of(m)) * (1 + 1e-9) + 1e-12
            for m in limits
            if m not in UNSUMMED
        )

    def take(self, claim: Claim) -> bool:
        """Give a call its estimate; True when the lease should grow before it is used up."""
        self.open = self.open + claim.estimate
        self.each = claim.estimate
        self.used = True
        if self.short or self.sending is not None or self.usable == NOTHING:
            return False
        low = self.each * (self.calls // 2)
        free = self.free
        limits = self.account.limits_of(self.wanted.limits)
        self.asks = any(free.of(m) < low.of(m) for m in limits if m not in UNSUMMED)
        return self.asks

    def end(self, calls: Amounts) -> None:
        """Leave calls out of what is open; nothing of the last one is left by rounding."""
        self.open = self.open - calls
        if self.open.calls <= 0 and self.open.of("tokens") <= 0:
            self.open = NOTHING

    def renewal(self, lease: str, at: float, until: float, *, closing: bool) -> Renewal:
        """Returns the next renewal to send; if the result of the last one is not known, that one
        again."""
        if self.sending is not None:
            return self.sending
        waiting = self.waiting
        self.waiting = []
        idle = closing or not (self.used or waiting)
        asks = bool(waiting or self.asks) and not closing
        if asks and at - self.asked_at < _SOON_S:
            self.calls = min(_MOST_CALLS, 2 * self.calls)
        elif idle:
            self.calls = _FIRST_CALLS
        elif asks:
            self.calls = max(_FIRST_CALLS, self.calls // 2)
        if asks:
            self.asked_at = at
        if idle or self.until <= at:
            keep = NOTHING
        else:
            keep = self.free.most(NOTHING)
        forced = [claim.estimate for claim in waiting if not claim.binding]
        each = self.each
        for claim in waiting:
            each = each.most(claim.estimate)
        if idle:
            self.usable = self.open + self.report.spent.most(NOTHING)
        self.number += 1
        self.used = self.asks = False
        wish = Wish(
            each=each,
            calls=self.calls if asks else 0,
            waiting=len(waiting) - len(forced),
            guessed=any(claim.guessed for claim in waiting),
        )
        free = sum(forced, keep)
        self.sending = Renewal(
            wanted=self.wanted,
            lease=lease,
            holds=Lease(
                until=until, number=self.number, open=self.open, free=free, ended=self.ended
            ),
            had=self.had,
            report=self.report,
            wish=wish,
        )
        return self.sending

    def took(self, sent: Renewal, stored: Stored, at: float, *, signed: bool) -> None:
        """Take over the result of a renewal. `signed`: an operator may have begun the account
        again. What was taken out of it otherwise is reported once more."""
        mine = stored.leases[sent.lease]
        began = self.account.started_at
        self.account = stored.seen(sent.lease)
        self.seen_at = at
        self.report = self.report.plus(sent.report, -1)
        if signed and self.account.started_at != began:
            self.own = self.report.spent
        missing = (self.own - self.account.spent - self.report.spent).most(NOTHING)
        if missing.usd > _LEAST_USD or missing.calls or missing.of("tokens"):
            self.report = self.report.plus(Report(spent=missing))
        more = (mine.ended - self.ended).most(NOTHING)  # a gateway of an earlier version forgets
        self.end(more)
        self.ended = self.ended + more
        self.had = self.usable = mine.held
        self.until = mine.until
        self.sending = None
        wish = sent.wish
        self.short = wish.calls > 0 and mine.free != sent.holds.free + wish.each * wish.calls


class BudgetLedger:
    """Reserves and settles, and is the store of operators. Made on the event loop that uses it.
    `store` None: in memory only. `retry_s`: how long a store that failed is not asked again."""

    def __init__(
        self,
        store: BudgetStore | None,
        settings: Callable[[], BudgetControl],
        retry_s: float,
        clock: Callable[[], float] = time.time,
    ):
        self.id = token_hex(8)
        self._shared = store is not None
        self._store = store or MemoryBudgets()
        self._settings = settings
        self._retry_s = retry_s
        self._clock = clock
        self._again_at = 0.0
        self._failing = False
        self._leases: dict[AccountKey, _OwnLease] = {}
        self._queue: dict[_OwnLease, None] = {}
        self._closing = self._sending = False
        self._turn: asyncio.Future[bool] | None = None

    @property
    def durable(self) -> bool:
        """True while budgets are counted in the store, for all gateways together."""
        return self._shared and not self._failing

    @property
    def waiting(self) -> int:
        """Accounts of which the store does not know everything yet."""
        return sum(lease.dirty for lease in self._leases.values())

    async def reserve(self, claim: Claim) -> Held:
        """Reserve a claim's estimate, or find what refuses it."""
        claim = structs.replace(claim, lease=self.id)
        leases = [self._lease(wanted, claim.at) for wanted in claim.accounts]
        stored = True
        asked = 0
        fresh_since = self._clock() - 2 * self._settings().poll_s
        ends_at = time.monotonic() + self._settings().store_wait_ms / 1000
        while lacking := [each for each in leases if not each.covers(claim, fresh_since)]:
            if asked and not claim.binding:
                break
            if asked and any(refused_by(each.view(), each.wanted, claim) for each in lacking):
                break
            if self._failing or (asked and time.monotonic() > ends_at):
                stored = False
                break
            asked += 1
            for each in lacking:
                each.waiting.append(claim)
            if not await self._renew(lacking):
                stored = False
                break
        accounts = tuple([each.view() for each in leases])
        refusals = refusals_of(accounts, claim)
        if not stored and claim.binding and not refusals:
            away = [each.wanted.key for each in lacking if each.wanted.hard]
            refusals = tuple([Refusal(key=key, metric=STORE_AWAY) for key in away])
        if not (refusals and claim.binding):
            low = [each for each in leases if each.take(claim)]
            if low and not self._failing:
                self._begin(low)
        stored = stored and self._shared
        return Held(claim=claim, accounts=accounts, refusals=refusals, stored=stored)

    async def settle(self, held: Held, used: Report) -> tuple[Account, ...]:
        """End a claim with what its call used; the accounts after it. The store has it with the
        next renewal."""
        claim = held.claim
        after = []
        for wanted in claim.accounts:
            lease = self._lease(wanted, claim.at)
            ended = used
            if claim.lease == self.id:
                lease.end(claim.estimate)
            elif claim.lease:
                ended = structs.replace(used, moved={claim.lease: claim.estimate})
            lease.report = lease.report.plus(ended)
            lease.own = lease.own + used.spent
            after.append(lease.view())
        return tuple(after)

    def handed_over(self, held: Held) -> Held:
        """A claim that any gateway may end from now on. What is reserved in memory only is given
        back: the store cannot know whether it has that."""
        claim = held.claim
        if held.stored or claim.lease != self.id:
            return held
        for wanted in claim.accounts:
            self._lease(wanted, claim.at).end(claim.estimate)
        return structs.replace(held, claim=structs.replace(claim, lease=""))

    async def look(self, wanted: Sequence[Wanted]) -> list[Account]:
        """Accounts as this gateway knows them, read from the store where it does not."""
        at = self._clock()
        found = {each.key: self._lease(each, at) for each in wanted}
        old = [each for each in found.values() if each.seen_at < at - 2 * self._settings().poll_s]
        if old and not self._failing:
            await self._renew(old)
        return [each.view() for each in found.values()]

    async def accounts(self, keys: Sequence[AccountKey]) -> tuple[Account, ...]:
        """See BudgetStore; while it fails, as this gateway knows them."""
        await self.flush()
        if self._shared and self._failing:
            return tuple([self._leases[key].view() for key in keys if key in self._leases])
        return await self._store.accounts(keys)

    async def list_accounts(
        self, *, budget: str | None = None, tenant: str | None = None, limit: int = 200
    ) -> tuple[Account, ...]:
        """See BudgetStore; while it fails, as this gateway knows them."""
        await self.flush()
        if self._shared and self._failing:
            return _listed([e.view() for e in self._leases.values()], budget, tenant, limit=limit)
        return await self._store.list_accounts(budget=budget, tenant=tenant, limit=limit)

    async def allow(
        self, key: AccountKey, *, at: float, limits: Mapping[str, float], lifted: bool | None
    ) -> Account:
        account = await self._store.allow(key, at=at, limits=limits, lifted=lifted)
        self.look_again(key)
        return account

    async def reset(self, key: AccountKey, *, at: float) -> bool:
        await self.flush()
        done = await self._store.reset(key, at=at)
        self.look_again(key)
        return done

    async def prune(self, older_than: float) -> int:
        return await self._store.prune(older_than)

    async def flush(self, *, closing: bool = False) -> None:
        """Report everything, if that is possible now. `closing`: give the leases back."""
        self._closing = self._closing or closing
        found = [
            each
            for each in self._leases.values()
            if each.dirty or (closing and each.had != NOTHING)
        ]
        if found and (closing or self._may_ask()):
            await self._renew(found)

    async def follow(self) -> None:
        """Report what was spent, and give back leases that are not used, for ever."""
        while True:
            await asyncio.sleep(self._settings().poll_s)
            await self.tend()

    async def tend(self) -> None:
        """One round of `follow`. It finds out whether a store that failed works again: a call does
        not wait for one that is known to be away."""
        if not self._may_ask():
            return
        soon = self._clock() + self._settings().reservation_s / 2
        found = [
            e
            for e in self._leases.values()
            if e.dirty or e.free != NOTHING or (e.open != NOTHING and e.until < soon)
        ]
        if self._failing:
            found = found or list(self._leases.values())[:1]
        if found:
            await self._renew(found)
        if len(self._leases) > _MOST_ACCOUNTS:
            for key, each in list(self._leases.items()):
                if not (each.dirty or each.waiting) and each.had == each.open == NOTHING:
                    del self._leases[key]

    def _lease(self, wanted: Wanted, at: float) -> _OwnLease:
        lease = self._leases.get(wanted.key)
        if lease is None:
            lease = self._leases[wanted.key] = _OwnLease(wanted, at)
        lease.wanted = wanted
        return lease

    def look_again(self, key: AccountKey) -> None:
        """Read an account before its next claim: its limits have changed in the store."""
        if (lease := self._leases.get(key)) is not None:
            lease.seen_at = -1e9

    async def _renew(self, leases: Sequence[_OwnLease]) -> bool:
        """Renew leases; False when the store fails or is slow; then they wait for it."""
        turn = self._begin(leases)
        await asyncio.wait({turn}, timeout=self._settings().store_wait_ms / 1000)
        if not turn.done():
            self._failed("the store takes too long")
        return turn.done() and turn.result()

    def _begin(self, leases: Sequence[_OwnLease]) -> asyncio.Future[bool]:
        """Put leases into the next round. All leases that ask before it starts share the round."""
        self._queue.update(dict.fromkeys(leases))
        if self._turn is None:
            self._turn = asyncio.get_running_loop().create_future()
            if not self._sending:
                spawn(self._rounds())
        return self._turn

    async def _rounds(self) -> None:
        self._sending = True
        try:
            while (turn := self._turn) is not None:
                batch = list(self._queue)
                self._queue = {}
                self._turn = None
                worked = False
                try:
                    for start in range(0, len(batch), _AT_ONCE):
                        await self._send(batch[start : start + _AT_ONCE])
                    worked = True
                    self._worked()
                except StoreError as error:
                    self._failed(str(error))
                finally:
                    turn.set_result(worked)
        finally:
            self._sending = False

    async def _send(self, batch: Sequence[_OwnLease]) -> None:
        at = self._clock()
        closing = self._closing
        until = at + self._settings().reservation_s
        sent = [each.renewal(self.id, at, until, closing=closing) for each in batch]
        after = await self._store.renew(sent, at)
        for lease, renewal, stored in zip(batch, sent, after, strict=True):
            signed = stored.account.mac == self._store.signed(stored.account).mac
            lease.took(renewal, stored, self._clock(), signed=signed)

    def _may_ask(self) -> bool:
        return time.monotonic() >= self._again_at

    def _failed(self, reason: str) -> None:
        self._again_at = time.monotonic() + self._retry_s
        if not self._failing:
            _log.error("budgets are counted in memory: the store fails", reason=reason)
        self._failing = True

    def _worked(self) -> None:
        self._again_at = 0.0
        if self._failing:
            _log.info("budgets are counted in the store again")
        self._failing = False
