"""Checks of BudgetStore and ControlStore."""

from __future__ import annotations

import asyncio
from typing import Any

from gateway.backends import Stores
from gateway.errors import AT_RISK
from gateway.stores.budgets import (
    Account,
    AccountKey,
    Amounts,
    BudgetStore,
    Claim,
    Control,
    Settlement,
    Wanted,
)
from gateway.stores.queries import ANY, STOPPED_BY, PageRequest, RunFilter
from gateway.stores.totals import Stop
from steering_gateway_testing.store_conformance.check import Check
from steering_gateway_testing.store_conformance.records import START, TENANT, a_call

CALL = Amounts(usd=0.01, input_tokens=100, output_tokens=10, calls=1)
RUN = AccountKey(budget="per-run", subject="r1")
DAY = AccountKey(budget="daily", subject="2023-11-14")


def wanted(key: AccountKey = RUN, stop_at: float | None = 1.0, **limits: float) -> Wanted:
    """One account of a claim, at the limits given."""
    return Wanted(key=key, tenant=TENANT, limits=limits, stop_at=stop_at, ends=True)


def claim(id: str, *accounts: Wanted, at: float = START, **changes: Any) -> Claim:
    """A claim of one `CALL`, which expires after a minute."""
    values: dict[str, Any] = {"estimate": CALL, "expires_at": at + 60}
    return Claim(id=id, at=at, accounts=accounts, **(values | changes))


def _budgets(stores: Stores) -> BudgetStore:
    assert stores.budgets is not None
    return stores.budgets


async def _account(store: BudgetStore, key: AccountKey = RUN) -> Account:
    (account,) = await store.accounts([key])
    return account


async def reserves_on_every_account_or_on_none(stores: Stores) -> None:
    """A claim that one account refuses leaves no trace on the others; the refusal names it."""
    store = _budgets(stores)
    first = await store.reserve(claim("c1", wanted(calls=5), wanted(DAY, calls=1)))
    assert [account.reserved for account in first.accounts] == [Amounts(), Amounts()]
    assert first.refusals == ()
    second = await store.reserve(claim("c2", wanted(calls=5), wanted(DAY, calls=1)))
    assert [(each.key, each.metric) for each in second.refusals] == [(DAY, "calls")]
    assert (await _account(store)).reserved == CALL
    third = await store.reserve(claim("c3", wanted(calls=5), wanted(DAY, calls=1), binding=False))
    assert third.refusals == second.refusals
    assert (await _account(store)).reserved == CALL + CALL


async def settles_with_what_was_used(stores: Stores) -> None:
    """The reservation is replaced by the actual amounts; costs add up without rounding."""
    store = _budgets(stores)
    used = Amounts(usd=0.1, input_tokens=90, output_tokens=7, calls=1)
    for number in range(10):
        made = claim(f"c{number}", wanted(usd=5), wanted(DAY, usd=5))
        await store.reserve(made)
        after = await store.settle(
            Settlement(claim=made, actual=used, at=START + 1, unpriced=number == 0)
        )
        assert [account.reserved for account in after] == [Amounts(), Amounts()]
    account = await _account(store, DAY)
    assert account.spent == Amounts(usd=1.0, input_tokens=900, output_tokens=70, calls=10)
    assert (account.unpriced, account.started_at, account.updated_at) == (1, START, START + 1)


async def tells_what_is_estimated(stores: Stores) -> None:
    """The part of what was spent that nobody reported: of a call whose amounts are estimated, and
    of a reservation that expired, until a late report corrects it; a reset forgets it."""
    store = _budgets(stores)
    lost = claim("lost", wanted(calls=9))
    await store.reserve(lost)
    guessed, known = (claim(id, wanted(calls=9), at=START + 61) for id in ("guessed", "known"))
    for made, estimated in ((guessed, True), (known, False)):
        await store.reserve(made)
        end = Settlement(claim=made, actual=CALL, at=START + 62, estimated=estimated)
        (account,) = await store.settle(end)
    assert (account.spent.calls, account.estimated) == (3, CALL + CALL)
    assert (await _account(store)).estimated == CALL + CALL
    await store.settle(Settlement(claim=lost, actual=CALL, at=START + 63))
    account = await _account(store)
    assert (account.spent.calls, account.estimated) == (3, CALL)
    assert await store.reset(RUN, at=START + 64)
    assert (await _account(store)).estimated == Amounts()


async def counts_an_expired_reservation_as_spent_once(stores: Stores) -> None:
    """A gateway that died is not waited for; a late settlement only corrects the estimate."""
    store = _budgets(stores)
    lost = claim("lost", wanted(calls=9))
    await store.reserve(lost)
    await store.reserve(claim("next", wanted(calls=9), at=START + 61))
    account = await _account(store)
    assert (account.spent, account.reserved) == (CALL, CALL)
    used = Amounts(usd=0.02, input_tokens=50, output_tokens=20, calls=1)
    await store.settle(Settlement(claim=lost, actual=used, at=START + 62))
    assert (await _account(store)).spent == used


async def adds_what_was_counted_elsewhere(stores: Stores) -> None:
    """A settlement without a reservation here is added whole."""
    store = _budgets(stores)
    away = claim("away", wanted(calls=9))
    await store.settle(Settlement(claim=away, actual=CALL, at=START, reserved=False))
    assert (await _account(store)).spent == CALL


async def never_admits_more_than_fits(stores: Stores) -> None:
    """Of many claims at once exactly as many are admitted as the limit has room for."""
    store = _budgets(stores)
    made = [claim(f"c{number}", wanted(usd=0.1)) for number in range(40)]
    outcomes = await asyncio.gather(*map(store.reserve, made))
    assert sum(not outcome.refusals for outcome in outcomes) == 10


async def follows_an_operator(stores: Stores) -> None:
    """Raised limits replace those of the config, a lifted account has none, a reset is zero."""
    store = _budgets(stores)
    for number in range(2):
        made = claim(f"c{number}", wanted(calls=2))
        await store.reserve(made)
        await store.settle(Settlement(claim=made, actual=CALL, at=START))
    again = claim("c2", wanted(calls=2))
    assert (await store.reserve(again)).refusals
    raised = await store.allow(RUN, at=START + 5, limits={"calls": 3}, lifted=False)
    assert (dict(raised.limits), raised.spent.calls) == ({"calls": 3}, 2)
    assert not (await store.reserve(again)).refusals
    assert (await store.reserve(claim("c3", wanted(calls=2)))).refusals
    await store.allow(RUN, at=START + 6, limits={"calls": 3}, lifted=True)
    assert not (await store.reserve(claim("c4", wanted(calls=2)))).refusals
    assert await store.reset(RUN, at=START + 7)
    account = await _account(store)
    assert (account.spent, dict(account.limits), account.lifted) == (Amounts(), {}, False)
    assert account.started_at == START + 7
    assert not await store.reset(DAY, at=START)


async def limits_minutes_from_the_first_call(stores: Stores) -> None:
    """An account is refused when its minutes are over, however little it used."""
    store = _budgets(stores)
    assert not (await store.reserve(claim("c1", wanted(minutes=2)))).refusals
    assert not (await store.reserve(claim("c2", wanted(minutes=2), at=START + 119))).refusals
    late = await store.reserve(claim("c3", wanted(minutes=2), at=START + 120))
    assert [each.metric for each in late.refusals] == ["minutes"]


async def lists_and_prunes_accounts(stores: Stores) -> None:
    """Last used first, by budget and tenant; what ends by itself goes when it is old and idle."""
    store = _budgets(stores)
    forever = Wanted(
        key=AccountKey(budget="all", subject="initech"), tenant="initech", limits={}, stop_at=None
    )
    for number, account in enumerate((wanted(DAY), forever, wanted())):
        made = claim(f"c{number}", account, at=START + number)
        await store.reserve(made)
        if number < 2:
            await store.settle(Settlement(claim=made, actual=CALL, at=START + number))
    listed = await store.list_accounts()
    assert [each.budget for each in listed] == ["per-run", "all", "daily"]
    assert [each.budget for each in await store.list_accounts(tenant="initech")] == ["all"]
    assert [each.budget for each in await store.list_accounts(budget="daily")] == ["daily"]
    assert [each.budget for each in await store.list_accounts(limit=1)] == ["per-run"]
    assert await store.prune(START + 30) == 1
    assert [each.budget for each in await store.list_accounts()] == ["per-run", "all"]


async def keeps_holds_until_they_are_released(stores: Stores) -> None:
    """One hold for each subject, the newest; oldest first in the list."""
    store = stores.controls
    assert store is not None
    stop = Control(
        subject="c1", tenant=TENANT, action="stop", reason="loops", at=START, author="ann"
    )
    pause = Control(subject="c0.1", tenant=TENANT, action="pause", at=START - 1)
    await store.hold(Control(subject="c1", tenant=TENANT, action="pause", at=START - 5))
    await store.hold(stop)
    await store.hold(pause)
    assert list(await store.list_controls()) == [pause, stop]
    await stores.states.commit(a_call())
    told: dict[str, Any] = {"name": "ann", "at": START, "go_on": "gateway runs resume c1"}
    assert await _stopped(stores, "operator") == Stop(
        action="stop", by="operator", why="loops", **told
    )
    assert await store.release("c1")
    assert not await store.release("c1")
    assert await _stopped(stores) is None
    (run,) = (await stores.runs.list_runs(RunFilter(), PageRequest())).runs
    ended = Control(subject=run.id, tenant=TENANT, action="stop", reason=f"{AT_RISK}0.9", at=START)
    await store.hold(ended)
    found = await _stopped(stores, "at_risk")
    assert found is not None
    assert (found.by, found.why) == ("at_risk", "0.9")
    assert await store.release(run.id)
    assert list(await store.list_controls()) == [pause]


async def _stopped(stores: Stores, by: str = "") -> Stop | None:
    """Of the one run, as it is listed, filtered by and read."""
    (listed,) = (await stores.runs.list_runs(RunFilter(), PageRequest())).runs
    for asked in STOPPED_BY:
        wanted = by != "" and asked in (by, ANY)
        assert await stores.runs.count_runs(RunFilter(stopped=asked)) == wanted, asked
    trace = await stores.runs.get_run(listed.id, tenant=None)
    assert trace is not None
    assert trace.run.stopped == listed.stopped
    return listed.stopped


BUDGET_CHECKS: tuple[Check, ...] = (
    reserves_on_every_account_or_on_none,
    settles_with_what_was_used,
    tells_what_is_estimated,
    counts_an_expired_reservation_as_spent_once,
    adds_what_was_counted_elsewhere,
    never_admits_more_than_fits,
    follows_an_operator,
    limits_minutes_from_the_first_call,
    lists_and_prunes_accounts,
    keeps_holds_until_they_are_released,
)
