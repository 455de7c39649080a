"""While the store fails, budgets are counted in memory, and what was used is written afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from gateway.budget_interface import Amounts
from gateway.features.budgets.accounts import AccountKey, Change, Claim, Renewal, Report, Wanted
from gateway.features.budgets.leases import BudgetLedger, MemoryBudgets
from gateway.features.budgets.settings import BudgetControl
from gateway.stores.protocols import StoreBusy
from steering_gateway_testing.patience import ANSWER_S, DEADLINE_MS

KEY = AccountKey(budget="b", subject="s")
CALL = Amounts(usd=0.01, input_tokens=10, output_tokens=1, calls=1)


class Flaky(MemoryBudgets):
    """A store that works, fails, or hangs until it works again."""

    def __init__(self) -> None:
        super().__init__()
        self.mode = "works"
        self._working = asyncio.Event()

    def become(self, mode: str) -> None:
        """Work, fail or hang from now on."""
        self.mode = mode
        if mode == "works":
            self._working.set()

    def settings(self) -> BudgetControl:
        """Settings with which nothing but a store that hangs takes too long."""
        return BudgetControl(store_wait_ms=20 if self.mode == "hangs" else DEADLINE_MS)

    async def _meet(self) -> None:
        if self.mode == "fails":
            raise StoreBusy("locked")
        if self.mode == "hangs":
            await self._working.wait()

    async def change(self, changes: Mapping[AccountKey, Change]) -> Any:
        await self._meet()
        return await super().change(changes)


def claim(number: int, calls: int = 5) -> Claim:
    """One call that needs room for one."""
    wanted = Wanted(key=KEY, tenant="t", limits={"calls": calls}, stop_at=1.0)
    return Claim(id=f"c{number}", at=1.0, estimate=CALL, accounts=(wanted,))


async def spend(ledger: BudgetLedger, numbers: Sequence[int]) -> list[bool]:
    """Make calls one after the other; whether each was let through."""
    passed = []
    for number in numbers:
        held = await ledger.reserve(claim(number))
        passed.append(not held.refusals)
        if passed[-1]:
            end = Report(spent=CALL)
            await ledger.settle(held, end)
    return passed


@pytest.mark.parametrize("trouble", ["fails", "hangs"])
async def test_the_count_goes_on_and_is_made_up_for(trouble: str) -> None:
    """Two calls before, two during, one after it: the sixth is refused, and the store has five."""
    store = Flaky()
    ledger = BudgetLedger(store, store.settings, retry_s=0.05)
    assert await spend(ledger, range(2)) == [True, True]
    assert ledger.durable
    store.become(trouble)
    assert await spend(ledger, range(2, 4)) == [True, True]
    assert not ledger.durable
    (known,) = await ledger.accounts([KEY])
    assert known.spent.calls == 4
    store.become("works")
    following = asyncio.ensure_future(ledger.follow())
    async with asyncio.timeout(ANSWER_S):
        while not ledger.durable or ledger.waiting:  # noqa: ASYNC110 - it has no event for it
            await asyncio.sleep(0.02)
    following.cancel()
    assert await spend(ledger, range(4, 6)) == [True, False]
    await ledger.flush()
    (account,) = await store.accounts([KEY])
    assert (account.spent.calls, account.reserved.calls) == (5, 0)
    assert account.spent.input_tokens == 50


async def test_no_call_asks_a_store_that_is_known_to_be_away() -> None:
    """However long ago it was asked last; the loop in the background does, also when nothing is to
    be reported, and calls ask again when it works."""
    store = Flaky()
    renewals = 0
    renew = store.renew

    async def counted(asked: Sequence[Renewal], at: float) -> Any:
        nonlocal renewals
        renewals += 1
        return await renew(asked, at)

    store.renew = counted  # type: ignore[method-assign]
    ledger = BudgetLedger(store, store.settings, retry_s=0.0)
    store.become("fails")
    assert await spend(ledger, range(1)) == [True]
    known = renewals
    assert await spend(ledger, range(1, 4)) == [True] * 3
    assert (renewals, ledger.durable) == (known, False)
    await ledger.tend()
    assert (renewals, ledger.durable) == (known + 1, False)
    store.become("works")
    await ledger.tend()
    assert ledger.durable
    assert await spend(ledger, range(4, 6)) == [True, False]


async def test_memory_alone_holds_a_limit() -> None:
    """A store that keeps no budgets: one gateway counts by itself."""
    ledger = BudgetLedger(None, BudgetControl, retry_s=1.0)
    assert await spend(ledger, range(7)) == [True] * 5 + [False] * 2
    assert not ledger.durable
    assert [account.spent.calls for account in await ledger.list_accounts()] == [5]
