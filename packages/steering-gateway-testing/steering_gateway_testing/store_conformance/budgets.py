"""Checks of BudgetStore and ControlStore."""

from __future__ import annotations

import asyncio
from typing import Any, TypeVar

from gateway.backends import Stores
from gateway.budget_interface import Amounts
from gateway.features.budgets.accounts import (
    Account,
    AccountKey,
    BudgetStore,
    Lease,
    Renewal,
    Report,
    Wanted,
    Wish,
)
from gateway.features.budgets.store import SQLBudgetStore
from steering_gateway_testing.store_conformance.check import Check, kept_by
from steering_gateway_testing.store_conformance.records import START, TENANT

CALL = Amounts(usd=0.01, input_tokens=100, output_tokens=10, calls=1)
RUN = AccountKey(budget="per-run", subject="r1")
DAY = AccountKey(budget="daily", subject="2023-11-14")


def wanted(key: AccountKey = RUN, stop_at: float | None = 1.0, **limits: float) -> Wanted:
    """One account of a claim, at the limits given."""
    return Wanted(key=key, tenant=TENANT, limits=limits, stop_at=stop_at, ends=True)


_Part = TypeVar("_Part", Lease, Report, Wish)


def renewal(
    number: int = 1, lease: str = "g1", account: Wanted | None = None, **changes: Any
) -> Renewal:
    """A renewal of one gateway's lease, which lasts a minute. `changes`: of all its parts; `keep`:
    what it has free."""
    values: dict[str, Any] = {"until": START + 60, "each": CALL, "number": number} | changes
    values["free"] = values.pop("keep", Amounts())

    def part(kind: type[_Part]) -> _Part:
        return kind(**{name: values[name] for name in kind.__struct_fields__ if name in values})

    return Renewal(
        wanted=account or wanted(calls=9),
        lease=lease,
        holds=part(Lease),
        had=values.get("had", Amounts()),
        report=part(Report),
        wish=part(Wish),
    )


async def renew(store: BudgetStore, *asked: Renewal, at: float = START) -> list[Lease]:
    """The leases after renewals."""
    after = await store.renew(asked, at)
    return [stored.leases[each.lease] for each, stored in zip(asked, after, strict=True)]


def kept_budgets(stores: Stores) -> BudgetStore:
    """The store of budgets."""
    return kept_by(stores, SQLBudgetStore)


async def _account(store: BudgetStore, key: AccountKey = RUN) -> Account:
    (account,) = await store.accounts([key])
    return account


async def leases_what_is_left(stores: Stores) -> None:
    """A quarter of what is left, but what waits if it fits; nothing once nothing is left."""
    store = kept_budgets(stores)
    (first,) = await renew(store, renewal(calls=4, waiting=1))
    assert (first.held, first.free) == (CALL * 2, CALL * 2)
    (other,) = await renew(store, renewal(lease="g2", calls=100, waiting=5))
    assert other.held == CALL * 5
    (more,) = await renew(store, renewal(2, had=CALL * 2, open=CALL * 2, calls=9, waiting=9))
    assert (more.held, more.free) == (CALL * 4, CALL * 2)
    (none,) = await renew(store, renewal(lease="g3", calls=9, waiting=1))
    assert none.held == Amounts()
    account = await _account(store)
    assert (account.reserved, account.leased) == (CALL * 2, CALL * 7)
    (forced,) = await renew(store, renewal(2, lease="g3", keep=CALL))
    assert forced.held == CALL


async def counts_a_report_once(stores: Stores) -> None:
    """The same renewal, sent again, changes nothing; costs add up without rounding."""
    store = kept_budgets(stores)
    used = Amounts(usd=0.1, input_tokens=90, output_tokens=7, calls=1)
    for number in range(1, 11):
        sent = renewal(number, spent=used, unpriced=int(number == 1))
        day = renewal(number, account=wanted(DAY, usd=5), spent=used)
        await renew(store, sent, day, at=START + 1)
        await renew(store, sent, at=START + 2)
    for account in await store.accounts([RUN, DAY]):
        assert account.spent == Amounts(usd=1.0, input_tokens=900, output_tokens=70, calls=10)
    account = await _account(store)
    assert (account.unpriced, account.started_at, account.tenant) == (1, START + 1, TENANT)


async def counts_an_expired_lease_as_spent_once(stores: Stores) -> None:
    """A gateway that died is not waited for; a late report only corrects what was counted."""
    store = kept_budgets(stores)
    await renew(store, renewal(open=CALL, keep=CALL))
    await renew(store, renewal(lease="g2", until=START + 200), at=START + 61)
    account = await _account(store)
    assert (account.spent, account.reserved, account.leased) == (CALL * 2, Amounts(), Amounts())
    assert account.estimated == CALL * 2
    late = renewal(2, had=CALL * 2, spent=CALL, until=START + 200)
    await renew(store, late, at=START + 62)
    account = await _account(store)
    assert (account.spent, account.estimated) == (CALL, Amounts())


async def ends_calls_of_another_gateway(stores: Stores) -> None:
    """What a gateway had reserved before it died counts as what the call used, before its lease has
    expired and after."""
    store = kept_budgets(stores)
    used = Amounts(usd=0.02, input_tokens=50, output_tokens=20, calls=1)
    await renew(store, renewal(open=CALL * 2))
    await renew(store, renewal(lease="g2", spent=used, moved={"g1": CALL}, until=START + 200))
    account = await _account(store)
    assert (account.spent, account.reserved) == (used, CALL)
    again = renewal(2, lease="g2", spent=used, moved={"g1": CALL}, until=START + 200)
    await renew(store, again, at=START + 61)
    account = await _account(store)
    assert (account.spent, account.reserved) == (used + used, Amounts())


async def says_what_others_have_ended(stores: Stores) -> None:
    """A gateway that reserves a call still, which another one has ended, is told once."""
    store = kept_budgets(stores)
    await renew(store, renewal(open=CALL))
    await renew(store, renewal(lease="g2", spent=CALL, moved={"g1": CALL}))
    (lease,) = await renew(store, renewal(2, had=CALL, open=CALL * 2))
    assert (lease.open, lease.ended) == (CALL, CALL)
    (lease,) = await renew(store, renewal(3, had=CALL, open=CALL, ended=CALL))
    assert (lease.open, lease.ended) == (CALL, CALL)
    assert (await _account(store)).reserved == CALL


async def never_leases_more_than_fits(stores: Stores) -> None:
    """Of many gateways at once, all together get as much as the limit has room for."""
    store = kept_budgets(stores)
    asked = [renewal(lease=f"g{number}", calls=5, waiting=1) for number in range(30)]
    await asyncio.gather(*(renew(store, each) for each in asked))
    account = await _account(store)
    assert account.reserved + account.leased == CALL * 9


async def follows_an_operator(stores: Stores) -> None:
    """Raised limits replace those of the config, a lifted account has none, a reset is zero."""
    store = kept_budgets(stores)
    two = wanted(calls=2)
    await renew(store, renewal(account=two, spent=CALL * 2))
    ask: dict[str, Any] = {"account": two, "calls": 4, "waiting": 2}
    assert (await renew(store, renewal(2, **ask)))[0].held == Amounts()
    raised = await store.allow(RUN, at=START + 5, limits={"calls": 3}, lifted=False)
    assert (dict(raised.limits), raised.spent.calls) == ({"calls": 3}, 2)
    assert (await renew(store, renewal(3, **ask)))[0].held == CALL
    lifted = await store.allow(RUN, at=START + 6, limits={"calls": 3}, lifted=True)
    assert lifted.limits_of({"usd": 1.0}) == {}
    assert await store.reset(RUN, at=START + 7)
    account = await _account(store)
    assert (account.spent, dict(account.limits), account.lifted) == (Amounts(), {}, False)
    assert (account.started_at, account.leased) == (START + 7, CALL)
    assert not await store.reset(DAY, at=START)


async def lists_and_prunes_accounts(stores: Stores) -> None:
    """Last used first, by budget and tenant; what ends by itself goes when it is old and idle."""
    store = kept_budgets(stores)
    forever = Wanted(
        key=AccountKey(budget="all", subject="initech"), tenant="initech", limits={}, stop_at=None
    )
    for number, account in enumerate((wanted(DAY), forever, wanted())):
        until = START + 60 * (number == 2)
        await renew(store, renewal(account=account, until=until), at=START + number)
    listed = await store.list_accounts()
    assert [each.budget for each in listed] == ["per-run", "all", "daily"]
    assert [each.budget for each in await store.list_accounts(tenant="initech")] == ["all"]
    assert [each.budget for each in await store.list_accounts(budget="daily")] == ["daily"]
    assert [each.budget for each in await store.list_accounts(limit=1)] == ["per-run"]
    assert await store.prune(START + 30) == 1
    assert [each.budget for each in await store.list_accounts()] == ["per-run", "all"]


CHECKS: tuple[Check, ...] = (
    leases_what_is_left,
    counts_a_report_once,
    counts_an_expired_lease_as_spent_once,
    ends_calls_of_another_gateway,
    says_what_others_have_ended,
    never_leases_more_than_fits,
    follows_an_operator,
    lists_and_prunes_accounts,
)
