"""`gateway budgets`: what is used of each budget, and an operator's changes to its limits.

Works while a gateway runs on the same store: its next call follows the change.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import orjson
from rich.console import Console
from rich.table import Table

from gateway.backends import Stores
from gateway.budgets.texts import account_view, amount
from gateway.commands.store import add_verb, say
from gateway.config import Settings
from gateway.config.budgets import METRICS
from gateway.errors import ConfigError
from gateway.stores.budgets import Account, AccountKey, BudgetStore
from gateway.text import formatting

_UNITS = {"usd": "US dollars", "minutes": "minutes", "calls": "calls"}


def add_parser(commands: Any) -> None:
    """Declare the command and its verbs."""
    budgets = commands.add_parser("budgets", help="list, raise, lift and reset budgets")
    verbs = budgets.add_subparsers(required=True, metavar="VERB")
    listing = add_verb(verbs, "list", "accounts, last used first", _list, existing=True)
    listing.add_argument("--budget", help="only this budget's")
    listing.add_argument("--tenant", help="only this tenant's")
    listing.add_argument("--limit", type=int, default=50, help="most accounts (default: 50)")
    more = add_verb(verbs, "raise", "set limits of one subject", _raise, existing=True)
    _add_account(more)
    for metric in METRICS:
        more.add_argument(
            f"--{metric.replace('_', '-')}",
            type=float,
            metavar="LIMIT",
            help=f"new limit in {_UNITS.get(metric, 'tokens')}",
        )
    lift = add_verb(verbs, "lift", "remove the limits of one subject", _lift, existing=True)
    _add_account(lift)
    reset = add_verb(
        verbs, "reset", "start the account of one subject again at zero", _reset, existing=True
    )
    _add_account(reset)


def _add_account(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("budget", help="name of the budget")
    parser.add_argument("subject", help="run, conversation, key, tenant or day, as listed")


async def _list(stores: Stores, settings: Settings, args: argparse.Namespace) -> None:
    found = await _store(stores).list_accounts(
        budget=args.budget, tenant=args.tenant, limit=args.limit
    )
    views = [account_view(account, settings.all_budgets(), time.time()) for account in found]
    if args.json:
        for view in views:
            say(orjson.dumps(view).decode())
    elif not views:
        say("no budget has been used")
    else:
        Console(width=max(Console().width, 120)).print(_table(views))


async def _raise(stores: Stores, settings: Settings, args: argparse.Namespace) -> None:
    given = {metric: getattr(args, metric) for metric in METRICS}
    limits = {metric: value for metric, value in given.items() if value is not None}
    if not limits or not all(0 < value < float("inf") for value in limits.values()):
        raise ConfigError("budgets raise: give at least one limit above 0, such as --usd 5")
    account = await _account(stores, args)
    limits = {**account.limits, **limits}
    await _allow(stores, settings, args, account, limits, lifted=account.lifted)


async def _lift(stores: Stores, settings: Settings, args: argparse.Namespace) -> None:
    account = await _account(stores, args)
    await _allow(stores, settings, args, account, dict(account.limits), lifted=True)


async def _reset(stores: Stores, settings: Settings, args: argparse.Namespace) -> None:
    key = (await _account(stores, args)).key
    await _store(stores).reset(key, at=time.time())
    (account,) = await _store(stores).accounts([key])
    _say_account(account, settings, args)


async def _allow(
    stores: Stores,
    settings: Settings,
    args: argparse.Namespace,
    account: Account,
    limits: dict[str, float],
    *,
    lifted: bool,
) -> None:
    store = _store(stores)
    changed = await store.allow(account.key, at=time.time(), limits=limits, lifted=lifted)
    _say_account(changed, settings, args)


async def _account(stores: Stores, args: argparse.Namespace) -> Account:
    key = AccountKey(budget=args.budget, subject=args.subject)
    found = await _store(stores).accounts([key])
    if not found:
        raise ConfigError(f"budget {args.budget!r} has no account {args.subject!r}")
    return found[0]


def _store(stores: Stores) -> BudgetStore:
    if stores.budgets is None:
        raise ConfigError("this store keeps no budgets: use the running gateway's /api/budgets")
    return stores.budgets


def _say_account(account: Account, settings: Settings, args: argparse.Namespace) -> None:
    view = account_view(account, settings.all_budgets(), time.time())
    if args.json:
        say(orjson.dumps(view).decode())
        return
    limits = ", ".join(amount(name, value) for name, value in view["limits"].items())
    say(f"{account.budget} {account.subject}: used {view['used']:.0%}, limits: {limits or 'none'}")


def _reserved(waiting: dict[str, Any]) -> str:
    calls = waiting["calls"]
    return f"{calls} {formatting.money(waiting['usd'])}" if calls else ""


def _table(views: list[dict[str, Any]]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("budget", "subject", "last used"):
        table.add_column(name, no_wrap=True)
    for name in ("used", "cost", "tokens", "calls", "on the way"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("limits")
    for view in views:
        spent, guessed = view["spent"], view["estimated"]
        guessed_tokens = guessed["input_tokens"] + guessed["output_tokens"]
        tokens = formatting.count(spent["input_tokens"] + spent["output_tokens"])
        limits = ", ".join(amount(name, value) for name, value in view["limits"].items())
        table.add_row(
            view["budget"],
            view["subject"],
            formatting.ago(view["updated_at"]),
            f"{view['used']:.0%} {view['step'] or ''}".strip(),
            formatting.about(formatting.money(spent["usd"]), guessed["usd"]),
            formatting.about(tokens, guessed_tokens),
            str(spent["calls"]),
            _reserved(view["reserved"]),
            "lifted" if view["lifted"] else limits,
        )
    return table
