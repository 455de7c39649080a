"""Leases of one account by several gateways: never over, whichever of them die, and few writes."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import hypothesis.strategies as st
from hypothesis import example, given

from gateway.budget_interface import Amounts
from gateway.features.budgets.accounts import (
    STORE_AWAY,
    AccountKey,
    Change,
    Claim,
    Lease,
    Renewal,
    Report,
    Wanted,
    Wish,
    renewed,
)
from gateway.features.budgets.leases import BudgetLedger, Held, MemoryBudgets
from gateway.features.budgets.settings import BudgetControl
from gateway.stores.protocols import StoreBusy
from tests.examples import examples

KEY = AccountKey(budget="b", subject="s")
CALL = Amounts(usd=0.01, calls=1)
LIMIT = 6
SETTINGS = BudgetControl(reservation_s=20, store_wait_ms=5000)


class Counted(MemoryBudgets):
    """A store that counts its statements, may be away, and may do what it does not answer."""

    def __init__(self) -> None:
        super().__init__()
        self.statements = 0
        self.away = self.deaf = False

    async def change(self, changes: Mapping[AccountKey, Change]) -> Any:
        self.statements += 1
        if self.away:
            raise StoreBusy("away")
        done = await super().change(changes)
        if self.deaf:
            raise StoreBusy("no answer")
        return done


class Clock:
    """The time of the gateways, which the test moves."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


def claim(clock: Clock, limit: int = LIMIT, **more: Any) -> Claim:
    """One call of a budget of calls."""
    wanted = Wanted(key=KEY, tenant="t", limits={"calls": limit}, stop_at=1.0, **more)
    return Claim(id="c", at=clock.now, estimate=CALL, accounts=(wanted,))


def end(held: Held) -> Report:
    """The end of a call that used what it was expected to."""
    return Report(spent=CALL)


def test_a_renewal_that_is_sent_again_changes_nothing() -> None:
    """Its answer was lost; the next number is another renewal, and its use counts."""
    wanted = Wanted(key=KEY, tenant="t", limits={"calls": 40}, stop_at=1.0)
    first = Renewal(
        wanted=wanted,
        lease="g",
        holds=Lease(until=20.0, number=1),
        report=Report(spent=CALL),
        wish=Wish(each=CALL, calls=2),
    )
    stored = renewed(first, 1.0, None)
    assert stored.account.spent == CALL
    assert stored.leases["g"].free == CALL * 2
    assert renewed(first, 2.0, stored) == stored
    following = Renewal(
        wanted=wanted,
        lease="g",
        holds=Lease(until=30.0, number=2),
        had=CALL * 2,
        report=Report(spent=CALL),
    )
    after = renewed(following, 3.0, stored)
    assert after.account.spent == CALL * 2
    assert after.leases["g"].held == Amounts()


STEP = st.tuples(
    st.sampled_from(
        ["call", "call", "call", "settle", "moved", "tend", "die", "wait", "late", "deaf"]
    ),
    st.integers(0, 3),
)


@examples(150)
@given(st.lists(STEP, max_size=120))
@example([("call", 0)] * 5 + [("call", 1), ("die", 1), ("late", 0), ("call", 0)])
@example([("call", 0), ("tend", 0), ("moved", 0), ("tend", 1), ("call", 0), ("tend", 0)])
def test_spent_and_leased_stay_within_the_limit(steps: list[tuple[str, int]]) -> None:
    """Any order of calls, ends, reports, deaths, expiries, ends that another gateway reports, also
    of calls that were reserved in memory, and renewals that were done without an answer. Calls that
    were let through are never over."""
    asyncio.run(_play(steps))


async def _play(steps: list[tuple[str, int]]) -> None:
    store, clock = Counted(), Clock()

    def gateway() -> BudgetLedger:
        return BudgetLedger(store, lambda: SETTINGS, 0.0, clock)

    ledgers, under_way = [gateway() for _ in range(4)], [list[Held]() for _ in range(4)]
    lost, passed = list[Held](), 0
    for step, which in steps:
        ledger, own = ledgers[which], under_way[which]
        if step == "call":
            held = await ledger.reserve(claim(clock))
            if not held.refusals and held.stored:
                own.append(held)
                passed += 1
            elif not held.refusals:
                given = ledger.handed_over(held)
                failed = Report()
                await ledgers[which - 1].settle(given, failed)
        elif step == "settle" and own:
            await ledger.settle(own[0], end(own.pop(0)))
        elif step == "moved" and own:
            await ledgers[which - 1].settle(own[0], end(own.pop(0)))
        elif step == "late" and lost:
            held = lost.pop()
            await ledger.settle(held, end(held))
        elif step == "tend":
            await ledger.tend()
        elif step == "deaf":
            store.deaf = not store.deaf
        elif step == "die":
            lost += own
            ledgers[which], under_way[which] = gateway(), []
        elif step == "wait":
            clock.now += 7
        for account in await store.accounts([KEY]):
            assert account.used("calls", 0) <= LIMIT
        assert passed <= LIMIT
    store.deaf = False
    clock.now += 100
    for held in lost:
        await ledgers[0].settle(held, end(held))
    for ledger, open_calls in zip(ledgers, under_way, strict=True):
        for held in open_calls:
            await ledger.settle(held, end(held))
        await ledger.flush(closing=True)
        await ledger.flush(closing=True)
    clock.now += 100
    await gateway().look(claim(clock).accounts)
    for account in await store.accounts([KEY]):
        assert passed <= account.spent.calls <= LIMIT
        assert (account.reserved, account.leased) == (Amounts(), Amounts())


async def test_a_call_that_another_gateway_ends_is_reserved_no_more() -> None:
    """Neither before nor after the gateway that had reserved it reports again; its other calls stay
    reserved until they end."""
    store, clock = Counted(), Clock()
    here, there = [BudgetLedger(store, lambda: SETTINGS, 0.0, clock) for _ in range(2)]

    async def reserved(*tended: BudgetLedger) -> int:
        for ledger in tended:
            await ledger.tend()
        (account,) = await store.accounts([KEY])
        return account.reserved.calls

    first, second = [await here.reserve(claim(clock, limit=40)) for _ in range(2)]
    assert await reserved(here) == 2
    await there.settle(first, end(first))
    third = await here.reserve(claim(clock, limit=40))
    assert await reserved(there, here, there) == 2
    for held in (second, third):
        await here.settle(held, end(held))
    assert await reserved(here) == 0
    (account,) = await here.look(first.claim.accounts)
    assert (account.spent.calls, account.reserved) == (3, Amounts())


async def test_a_call_that_was_reserved_in_memory_is_handed_over() -> None:
    """Whichever gateway reports first, what it used is counted once, and nothing stays reserved:
    neither where it was reserved nor in the store. Others of that gateway are reserved still."""
    for report_first in (True, False):
        store, clock = Counted(), Clock()
        here, there = [BudgetLedger(store, lambda: SETTINGS, 0.0, clock) for _ in range(2)]
        store.away = True
        first, other = [await here.reserve(claim(clock, limit=40)) for _ in range(2)]
        assert not first.stored
        given = here.handed_over(first)
        assert here.handed_over(given) == given
        store.away = False
        if report_first:
            await here.tend()
        await there.settle(given, end(given))
        for ledger in (there, here, here):  # it first sends the renewal again that failed
            await ledger.tend()
        (account,) = await store.accounts([KEY])
        assert (account.spent.calls, account.reserved.calls) == (1, 1)
        await here.settle(other, end(other))
        await here.flush(closing=True)
        (account,) = await store.accounts([KEY])
        assert (account.spent.calls, account.reserved) == (2, Amounts())


async def test_a_call_that_is_reserved_in_the_store_stays_so_when_it_is_handed_over() -> None:
    """Until it ends, wherever that is."""
    clock = Clock()
    here = BudgetLedger(Counted(), lambda: SETTINGS, 0.0, clock)
    held = await here.reserve(claim(clock, limit=40))
    assert held.stored
    assert here.handed_over(held) is held


async def test_one_statement_for_many_calls() -> None:
    """The more calls there are, the more a statement pays for; the rest is given back."""
    store, clock = Counted(), Clock()
    ledger = BudgetLedger(store, lambda: SETTINGS, 0.0, clock)
    for _ in range(1000):
        held = await ledger.reserve(claim(clock, limit=10_000))
        await ledger.settle(held, end(held))
    assert store.statements <= 50
    await ledger.flush(closing=True)
    (account,) = await store.accounts([KEY])
    assert (account.spent.calls, account.leased.calls) == (1000, 0)


async def test_a_hard_budget_refuses_while_the_store_is_away() -> None:
    """What the lease holds is still given; others are counted in memory."""
    for hard in (True, False):
        store, clock = Counted(), Clock()
        ledger = BudgetLedger(store, lambda: SETTINGS, 60.0, clock)
        await ledger.reserve(claim(clock, limit=40, hard=hard))
        store.away = True
        found = [await ledger.reserve(claim(clock, limit=40, hard=hard)) for _ in range(3)]
        metrics = [held.refusals[0].metric for held in found if held.refusals]
        assert [held.stored for held in found] == [True, False, False]
        assert metrics == ([STORE_AWAY] * 2 if hard else [])
