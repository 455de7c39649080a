"""Keeps budgets in the store, and in memory while that fails or is slow.

Memory always has what the store last said and what is reserved here. While the store fails, claims
are decided by that; what calls used meanwhile is written when the store works again. Another
gateway's calls are not seen in the meantime.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

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
    Wanted,
    decide,
    opened,
    settled,
)
from gateway.stores.protocols import StoreError
from gateway.tasks import spawn

_MOST_ACCOUNTS = 20_000
"""The accounts last used; one costs about 1 kB."""


class MemoryBudgets:
    """`BudgetStore` without a store. Reservations never expire: they end with the process."""

    def __init__(self) -> None:
        self._accounts: OrderedDict[AccountKey, Account] = OrderedDict()
        self._ends: dict[AccountKey, bool] = {}
        self._claims: dict[AccountKey, dict[str, Amounts]] = {}

    async def reserve(self, claim: Claim) -> Reserved:
        """See BudgetStore."""
        found = [self.find(wanted.key) or opened(wanted, claim.at) for wanted in claim.accounts]
        outcome = decide(found, claim)
        if not (outcome.refusals and claim.binding):
            self.keep(outcome.accounts, claim)
        return outcome

    def keep(self, accounts: Sequence[Account], claim: Claim) -> None:
        """Take over accounts as they are in the store, and the claim that was made on them."""
        for account, wanted in zip(accounts, claim.accounts, strict=True):
            self._put(account, wanted)
            self._claims.setdefault(wanted.key, {})[claim.id] = claim.estimate

    async def settle(self, settlement: Settlement) -> tuple[Account, ...]:
        """See BudgetStore."""
        after = []
        for wanted in settlement.claim.accounts:
            self.release(wanted.key, settlement.claim.id)
            account = self.find(wanted.key) or opened(wanted, settlement.claim.at)
            account = settled(account, settlement, found=True)
            self._put(account, wanted)
            after.append(replace(account, reserved=self._reserved(wanted.key)))
        return tuple(after)

    def took(self, settlement: Settlement, after: Sequence[Account]) -> None:
        """Take over accounts as the store has them after a claim ended."""
        for account, wanted in zip(after, settlement.claim.accounts, strict=True):
            self.release(wanted.key, settlement.claim.id)
            self._put(account, wanted)

    def release(self, key: AccountKey, claim: str) -> None:
        """Forget a reservation."""
        claims = self._claims.get(key, {})
        claims.pop(claim, None)
        if not claims:
            self._claims.pop(key, None)

    async def accounts(self, keys: Sequence[AccountKey]) -> tuple[Account, ...]:
        """See BudgetStore."""
        found = (self.find(key) for key in keys)
        return tuple(account for account in found if account is not None)

    async def list_accounts(
        self, *, budget: str | None = None, tenant: str | None = None, limit: int = 200
    ) -> tuple[Account, ...]:
        """See BudgetStore."""
        found = [
            account
            for key in reversed(self._accounts)
            if (account := self.find(key)) is not None
            and budget in (None, account.budget)
            and tenant in (None, account.tenant)
        ]
        return tuple(found[:limit])

    async def allow(
        self, key: AccountKey, *, at: float, limits: Mapping[str, float], lifted: bool
    ) -> Account:
        """See BudgetStore."""
        account = self.find(key) or Account(budget=key.budget, subject=key.subject, started_at=at)
        account = replace(account, limits=dict(limits), lifted=lifted, updated_at=at)
        self._accounts[key] = account
        return account

    async def reset(self, key: AccountKey, *, at: float) -> bool:
        """See BudgetStore."""
        account = self.find(key)
        if account is not None:
            fresh = Account(budget=key.budget, subject=key.subject, tenant=account.tenant)
            self._accounts[key] = replace(fresh, started_at=at, updated_at=at)
        return account is not None

    async def prune(self, older_than: float) -> int:
        """See BudgetStore."""
        old = [
            key
            for key, account in self._accounts.items()
            if self._ends.get(key) and account.updated_at < older_than and key not in self._claims
        ]
        for key in old:
            del self._accounts[key], self._ends[key]
        return len(old)

    def find(self, key: AccountKey) -> Account | None:
        """The account, with what is reserved here."""
        account = self._accounts.get(key)
        return None if account is None else replace(account, reserved=self._reserved(key))

    def _put(self, account: Account, wanted: Wanted) -> None:
        self._accounts[wanted.key] = account
        self._accounts.move_to_end(wanted.key)
        self._ends[wanted.key] = wanted.ends
        while len(self._accounts) > _MOST_ACCOUNTS:
            self._ends.pop(self._accounts.popitem(last=False)[0], None)

    def _reserved(self, key: AccountKey) -> Amounts:
        return sum(self._claims.get(key, {}).values(), NOTHING)


T = TypeVar("T")

_MOST_WAITING = 10_000
_log = get_logger("gateway.budgets")


class _Slow(Exception):
    """The store did not answer in time; what was asked of it may still happen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """A claim that was decided. `stored`: in the store, for every gateway; else in memory only."""

    claim: Claim
    outcome: Reserved
    stored: bool


class BudgetLedger:
    """Reserves and settles. Made on the event loop that uses it.

    `store` None: accounts are kept in memory only. `retry_s`: how long a store that failed is not
    asked again.
    """

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
            task = spawn(self._through(store, store.reserve(claim)))
            try:
                outcome = await self._within(task)
            except (StoreError, _Slow) as error:
                self._failed(error)
                task.add_done_callback(lambda done: self._give_back(done, claim))
            except asyncio.CancelledError:
                task.add_done_callback(lambda done: self._give_back(done, claim))
                raise
            else:
                self._worked()
                if not (outcome.refusals and claim.binding):
                    self.memory.keep(outcome.accounts, claim)
                return Held(claim=claim, outcome=outcome, stored=True)
        outcome = await self.memory.reserve(claim)
        return Held(claim=claim, outcome=outcome, stored=False)

    async def settle(self, held: Held, settlement: Settlement) -> tuple[Account, ...]:
        """End a claim; the accounts after it. Never raises: what cannot be written waits."""
        settlement = replace(settlement, reserved=held.stored)
        store = self._store
        if store is None:
            return await self.memory.settle(settlement)
        if not self._may_ask():
            self._waiting.append(settlement)
            return await self.memory.settle(settlement)
        task = spawn(self._through(store, store.settle(settlement)))
        try:
            after = await self._within(task)
        except (StoreError, _Slow) as error:
            self._failed(error)
            task.add_done_callback(lambda done: self._keep_waiting(done, settlement))
            return await self.memory.settle(settlement)
        except asyncio.CancelledError:
            task.add_done_callback(lambda done: self._keep_waiting(done, settlement))
            raise
        self._worked()
        self.memory.took(settlement, after)
        return after

    async def flush(self) -> None:
        """Write what waits, if that is possible now."""
        if self._store is not None and self._waiting:
            try:
                await self._write_waiting(self._store)
            except StoreError as error:
                self._failed(error)

    async def follow(self) -> None:
        """Write what waits as soon as the store works again, for ever."""
        while True:
            await asyncio.sleep(self._retry_s)
            if self._waiting and self._may_ask():
                await self.flush()
                if not self._waiting:
                    self._worked()

    async def _through(self, store: BudgetStore, work: Coroutine[Any, Any, T]) -> T:
        """The result of `work`, after everything that waits was written."""
        try:
            if self._waiting:
                await self._write_waiting(store)
        except BaseException:
            work.close()
            raise
        return await work

    async def _write_waiting(self, store: BudgetStore) -> None:
        async with self._writing:
            while self._waiting:
                await store.settle(self._waiting[0])
                self._waiting.popleft()

    async def _within(self, task: asyncio.Task[T]) -> T:
        done, _ = await asyncio.wait({task}, timeout=self._settings().store_wait_ms / 1000)
        if not done:
            raise _Slow("the store takes too long")
        return task.result()

    def _may_ask(self) -> bool:
        return time.monotonic() >= self._again_at

    def _failed(self, error: Exception) -> None:
        self._again_at = time.monotonic() + self._retry_s
        if not self._failing:
            _log.error("budgets are counted in memory: the store fails", reason=str(error))
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
