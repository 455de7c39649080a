"""Keeps budgets in the store, and in memory while that fails or is slow.

Memory always has what the store last said and what is reserved here. While the store fails, claims
are decided by that, without other gateways' calls; settlements wait until the store works again."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from cachetools import FIFOCache
from msgspec import Struct, structs

from gateway.config.budgets import ControlSettings
from gateway.observability.logging import get_logger
from gateway.stores.budgets import (
    NOTHING,
    Account,
    AccountKey,
    Amounts,
    BudgetStore,
    Claim,
    Reserved,
    Settlement,
    decide,
    opened,
    settled,
)
from gateway.stores.protocols import StoreError
from gateway.tasks import spawn

_MOST_ACCOUNTS = 20_000  # the accounts last used; one costs about 1 kB


class MemoryBudgets:
    """`BudgetStore` without a store. Reservations never expire: they end with the process."""

    def __init__(self) -> None:
        # With whether each ends by itself.
        self._accounts: FIFOCache[AccountKey, tuple[Account, bool]] = FIFOCache(_MOST_ACCOUNTS)
        self._claims: dict[AccountKey, dict[str, Amounts]] = {}

    async def reserve(self, claim: Claim) -> Reserved:
        found = [self.find(wanted.key) or opened(wanted, claim.at) for wanted in claim.accounts]
        outcome = decide(found, claim)
        if not (outcome.refusals and claim.binding):
            self.keep(outcome.accounts, claim)
        return outcome

    def keep(self, accounts: Sequence[Account], claim: Claim) -> None:
        """Take over accounts as they are in the store, and the claim that was made on them."""
        for account, wanted in zip(accounts, claim.accounts, strict=True):
            self._accounts[wanted.key] = (account, wanted.ends)
            self._claims.setdefault(wanted.key, {})[claim.id] = claim.estimate

    async def settle(self, settlement: Settlement) -> tuple[Account, ...]:
        after = []
        for wanted in settlement.claim.accounts:
            self.release(wanted.key, settlement.claim.id)
            account = self.find(wanted.key) or opened(wanted, settlement.claim.at)
            account = settled(account, settlement, found=True)
            self._accounts[wanted.key] = (account, wanted.ends)
            after.append(replace(account, reserved=self._reserved(wanted.key)))
        return tuple(after)

    def took(self, settlement: Settlement, after: Sequence[Account]) -> None:
        """Take over accounts as the store has them after a claim ended."""
        for account, wanted in zip(after, settlement.claim.accounts, strict=True):
            self.release(wanted.key, settlement.claim.id)
            self._accounts[wanted.key] = (account, wanted.ends)

    def release(self, key: AccountKey, claim: str) -> None:
        """Forget a reservation."""
        claims = self._claims.get(key, {})
        claims.pop(claim, None)
        if not claims:
            self._claims.pop(key, None)

    async def accounts(self, keys: Sequence[AccountKey]) -> tuple[Account, ...]:
        found = (self.find(key) for key in keys)
        return tuple(account for account in found if account is not None)

    async def list_accounts(
        self, *, budget: str | None = None, tenant: str | None = None, limit: int = 200
    ) -> tuple[Account, ...]:
        found = [
            account
            for key in self._accounts
            if (account := self.find(key)) is not None
            and budget in (None, account.budget)
            and tenant in (None, account.tenant)
        ]
        return tuple(sorted(found, key=lambda each: -each.updated_at)[:limit])

    async def allow(
        self, key: AccountKey, *, at: float, limits: Mapping[str, float], lifted: bool
    ) -> Account:
        account = self.find(key) or Account(budget=key.budget, subject=key.subject, started_at=at)
        account = replace(account, limits=dict(limits), lifted=lifted, updated_at=at)
        self._accounts[key] = (account, self._ends(key))
        return account

    async def reset(self, key: AccountKey, *, at: float) -> bool:
        account = self.find(key)
        if account is not None:
            fresh = Account(budget=key.budget, subject=key.subject, tenant=account.tenant)
            fresh = replace(fresh, started_at=at, updated_at=at)
            self._accounts[key] = (fresh, self._ends(key))
        return account is not None

    async def prune(self, older_than: float) -> int:
        old = [
            key
            for key, (account, ends) in self._accounts.items()
            if ends and account.updated_at < older_than and key not in self._claims
        ]
        for key in old:
            del self._accounts[key]
        return len(old)

    def find(self, key: AccountKey) -> Account | None:
        """The account, with what is reserved here."""
        if (found := self._accounts.get(key)) is None:
            return None
        return replace(found[0], reserved=self._reserved(key))

    def _ends(self, key: AccountKey) -> bool:
        return key in self._accounts and self._accounts[key][1]

    def _reserved(self, key: AccountKey) -> Amounts:
        return sum(self._claims.get(key, {}).values(), NOTHING)


T = TypeVar("T")
_MOST_WAITING = 10_000
_log = get_logger("gateway.budgets")


class Held(Struct, frozen=True, kw_only=True):
    """A claim that was decided. `stored`: in the store, for every gateway; else in memory only."""

    claim: Claim
    outcome: Reserved
    stored: bool


class BudgetLedger:
    """Reserves and settles. Made on the event loop that uses it. `store` None: in memory only.
    `retry_s`: how long a store that failed is not asked again."""

    def __init__(
        self, store: BudgetStore | None, settings: Callable[[], ControlSettings], retry_s: float
    ) -> None:
        self.memory = MemoryBudgets()
        self._store = store
        self._settings = settings
        self._retry_s = retry_s
        self._again_at = 0.0
        self._failing = False
        self._waiting: deque[Settlement] = deque(maxlen=_MOST_WAITING)
        self._writing = asyncio.Lock()

    @property
    def store(self) -> BudgetStore:
        """Store in which operators read and change accounts; memory if there is none."""
        return self._store or self.memory

    @property
    def durable(self) -> bool:
        """True while budgets are counted in the store, for all gateways together."""
        return self._store is not None and not self._failing

    @property
    def counted(self) -> BudgetStore:
        """Accounts as calls are counted now: those of the store, or of memory while it fails."""
        return self.store if self.durable else self.memory

    @property
    def waiting(self) -> int:
        """Settlements in memory that the store does not have yet."""
        return len(self._waiting)

    async def reserve(self, claim: Claim) -> Held:
        """Reserve a claim's estimate, or find what refuses it."""
        store = self._store
        if store is not None and self._may_ask():
            outcome = await self._ask(
                store, lambda: store.reserve(claim), lambda done: self._give_back(done, claim)
            )
            if outcome is not None:
                if not (outcome.refusals and claim.binding):
                    self.memory.keep(outcome.accounts, claim)
                return Held(claim=claim, outcome=outcome, stored=True)
        return Held(claim=claim, outcome=await self.memory.reserve(claim), stored=False)

    async def settle(self, held: Held, settlement: Settlement) -> tuple[Account, ...]:
        """End a claim; the accounts after it. Never raises: what cannot be written waits."""
        settlement = structs.replace(settlement, reserved=held.stored)
        store = self._store
        if store is not None and self._may_ask():
            after = await self._ask(
                store,
                lambda: store.settle(settlement),
                lambda done: self._keep_waiting(done, settlement),
            )
            if after is not None:
                self.memory.took(settlement, after)
                return after
        elif store is not None:
            self._waiting.append(settlement)
        return await self.memory.settle(settlement)

    async def _ask(
        self,
        store: BudgetStore,
        work: Callable[[], Awaitable[T]],
        late: Callable[[asyncio.Task[T]], None],
    ) -> T | None:
        """The result of `work`, after everything that waits was written; None when the store fails
        or is slow. Then `late` gets what is done later."""

        async def through() -> T:
            if self._waiting:
                await self._write_waiting(store)
            return await work()

        task = spawn(through())
        try:
            done, _ = await asyncio.wait({task}, timeout=self._settings().store_wait_ms / 1000)
            if done:
                found = task.result()
                self._worked()
                return found
            self._failed("the store takes too long")
        except StoreError as error:
            self._failed(str(error))
        except asyncio.CancelledError:
            task.add_done_callback(late)
            raise
        task.add_done_callback(late)
        return None

    async def flush(self) -> None:
        """Write what waits, if that is possible now."""
        if self._store is not None and self._waiting:
            try:
                await self._write_waiting(self._store)
            except StoreError as error:
                self._failed(str(error))

    async def follow(self) -> None:
        """Write what waits as soon as the store works again, for ever."""
        while True:
            await asyncio.sleep(self._retry_s)
            if self._waiting and self._may_ask():
                await self.flush()
                if not self._waiting:
                    self._worked()

    async def _write_waiting(self, store: BudgetStore) -> None:
        async with self._writing:
            while self._waiting:
                await store.settle(self._waiting[0])
                self._waiting.popleft()

    def _may_ask(self) -> bool:
        return time.monotonic() >= self._again_at

    def _failed(self, reason: str) -> None:
        self._again_at = time.monotonic() + self._retry_s
        if not self._failing:
            _log.error("budgets are counted in memory: the store fails", reason=reason)
        self._failing = True

    def _worked(self) -> None:
        if self._failing:
            _log.info("budgets are counted in the store again")
        self._failing = False

    def _give_back(self, done: asyncio.Task[Reserved], claim: Claim) -> None:
        """Take back a reservation that was made after all, for a claim that memory decided."""
        if done.cancelled() or done.exception() is not None:
            return
        outcome = done.result()
        if not (outcome.refusals and claim.binding):
            self._waiting.append(Settlement(claim=claim, actual=NOTHING, at=claim.at))

    def _keep_waiting(self, done: asyncio.Task[Any], settlement: Settlement) -> None:
        if done.cancelled() or done.exception() is not None:
            self._waiting.append(settlement)
