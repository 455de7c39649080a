"""`gateway budgets`: accounts, and their limits."""

import time
from argparse import Namespace
from functools import partial
from typing import Any

from gateway.backends import Stores
from gateway.commands.declared import declare
from gateway.commands.store import as_line, kept, say
from gateway.config import Settings
from gateway.errors import ConfigError
from gateway.features.budgets.accounts import Account, AccountKey
from gateway.features.budgets.settings import METRICS, BudgetSettings, all_budgets
from gateway.features.budgets.store import SQLBudgetStore
from gateway.features.budgets.texts import account_view
from gateway.hooks import given
from gateway.text.formatting import amount
from gateway.text.page import rendered

_NO_BUDGETS = "this store keeps no budgets: use the running gateway's /api/budgets"


def add_budgets(commands: Any) -> None:
    """Declare the command and its verbs."""
    does = {
        "budgets list": _list_budgets,
        "budgets raise": partial(_allow, None),
        "budgets lift": partial(_allow, True),
        "budgets reset": _reset_account,
    }
    declare(commands, __name__, does)


async def _list_budgets(stores: Stores, settings: Settings, args: Namespace) -> None:
    found = await kept(stores.of(SQLBudgetStore), _NO_BUDGETS).list_accounts(
        budget=args.budget, tenant=args.tenant, limit=args.limit
    )
    budgets = await _known(stores, settings)
    views = [account_view(account, budgets, time.time()) for account in found]
    if args.json:
        for view in views:
            say(as_line(view))
    elif not views:
        say("no budget has been used")
    else:
        say(rendered(__package__, "budgets.txt", {"views": views, "amount": amount}).rstrip())


async def _allow(lifted: bool | None, stores: Stores, settings: Settings, args: Namespace) -> None:
    given = {metric: getattr(args, metric, None) for metric in METRICS}
    limits = {metric: value for metric, value in given.items() if value is not None}
    if not (limits or lifted) or not all(0 < value < float("inf") for value in limits.values()):
        raise ConfigError("budgets raise: give at least one limit above 0, such as --usd 5")
    store, account = await _account(stores, args)
    changed = await store.allow(account.key, at=time.time(), limits=limits, lifted=lifted)
    await _say_account(changed, stores, settings, args=args)


async def _reset_account(stores: Stores, settings: Settings, args: Namespace) -> None:
    store, account = await _account(stores, args)
    await store.reset(account.key, at=time.time())
    (changed,) = await store.accounts([account.key])
    await _say_account(changed, stores, settings, args=args)


async def _account(stores: Stores, args: Namespace) -> tuple[SQLBudgetStore, Account]:
    store = kept(stores.of(SQLBudgetStore), _NO_BUDGETS)
    found = await store.accounts([AccountKey(budget=args.budget, subject=args.subject)])
    if not found:
        raise ConfigError(f"budget {args.budget!r} has no account {args.subject!r}")
    return store, found[0]


async def _known(stores: Stores, settings: Settings) -> list[BudgetSettings]:
    """The budgets of the config and of the keys."""
    known = [*all_budgets(settings)]
    for of_keys in given("key_budgets"):
        known += await of_keys(stores)
    return known


async def _say_account(
    account: Account, stores: Stores, settings: Settings, args: Namespace
) -> None:
    view = account_view(account, await _known(stores, settings), time.time())
    limits = ", ".join(amount(name, value) for name, value in view["limits"].items()) or "none"
    used = f"{account.budget} {account.subject}: used {view['used']:.0%}"
    say(as_line(view) if args.json else f"{used}, limits: {limits}")
