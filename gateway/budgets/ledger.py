"""Keeps budgets in the store, and in memory while that fails or is slow.

Memory always has what the store last said and what is reserved here. While the store fails, claims
are decided by that; what calls used meanwhile is written when the store works again. Another
gateway's calls are not seen in the meantime.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from gateway.budgets.memory import MemoryBudgets
from gateway.config.budgets import ControlSettings
from gateway.observability.logging import get_logger
from gateway.stores.budgets import NOTHING, Account, BudgetStore, Claim, Reserved, Settlement
from gateway.stores.protocols import StoreError
from gateway.tasks import spawn

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
        """Where operators read and change accounts: the store if there is one."""
        return self._store or self.memory

    @property
    def durable(self) -> bool:
        """Whether budgets are counted in the store now, and so for all gateways together."""
        return self._store is not None and not self._failing

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
