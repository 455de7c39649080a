"""`gateway budgets`, `audit` and `migrate`: commands of operators. They work while a
gateway runs on the same store: its next call follows the change."""

import argparse
import asyncio
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from rich.console import Console
from rich.table import Table

from gateway.backends import Stores, copy_to_server
from gateway.budgets.texts import account_view, amount
from gateway.commands.store import (
    add_acts,
    add_verb,
    answer,
    as_line,
    connect,
    kept,
    reported,
    say,
    table,
)
from gateway.config import Secret, Settings, load_settings
from gateway.config.budgets import METRICS, BudgetSettings
from gateway.config.storage import StorageSettings
from gateway.errors import BadRequest, ConfigError
from gateway.hooks import given
from gateway.stores.budgets import Account, AccountKey, BudgetStore
from gateway.stores.protocols import StoreError
from gateway.text import formatting
from gateway.text.formatting import progress_bar
from gateway.text.sanitize import one_line
from gateway.values import FieldDict


def add_parser(commands: Any) -> None:
    """Declare the commands."""
    _add_budgets(commands)
    log = add_verb(
        commands, "audit", "who changed what, when and why, newest first", command=_audit
    )
    log.add_argument("--csv", action="store_true", help="CSV on stdout")
    for name in ("kind", "subject", "author", "text", "since", "until", "limit"):
        log.add_argument(f"--{name}", help=f"as `GET /api/audit` takes `{name}`")
    migrate = commands.add_parser("migrate", help="create or migrate the database, then stop")
    migrate.add_argument("--config", type=Path, help="config file (default: ./config.yaml)")
    migrate.add_argument("--json", action="store_true", help="one JSON object on stdout")
    to = "copy the SQLite file at storage.path to a PostgreSQL database"
    migrate.add_argument("--to", metavar="URL", help=to)
    migrate.set_defaults(run=lambda args: asyncio.run(_migrate(args)))


_UNITS = {"usd": "US dollars", "minutes": "minutes", "calls": "calls"}
_NO_BUDGETS = "this store keeps no budgets: use the running gateway's /api/budgets"


def _add_budgets(commands: Any) -> None:
    budgets = commands.add_parser("budgets", help="list, raise, lift and reset budgets")
    verbs = budgets.add_subparsers(required=True, metavar="VERB")
    listing = add_verb(verbs, "list", "accounts, last used first", command=_list_budgets)
    listing.add_argument("--budget", help="only this budget's")
    listing.add_argument("--tenant", help="only this tenant's")
    listing.add_argument("--limit", type=int, default=50, help="most accounts (default: 50)")
    more = add_verb(verbs, "raise", "set limits of one subject", command=partial(_allow, None))
    lift = add_verb(
        verbs, "lift", "remove the limits of one subject", command=partial(_allow, True)
    )
    summary = "start the account of one subject again at zero"
    reset = add_verb(verbs, "reset", summary, command=_reset_account)
    add_acts("budget", more, lift, reset)
    for parser in (more, lift, reset):
        parser.add_argument("budget", help="name of the budget")
        parser.add_argument("subject", help="run, key, team or another, as listed")
    for metric in METRICS:
        summary = f"new limit in {_UNITS.get(metric, 'tokens')}"
        option = f"--{metric.replace('_', '-')}"
        more.add_argument(option, type=float, metavar="LIMIT", help=summary)


async def _list_budgets(stores: Stores, settings: Settings, args: argparse.Namespace) -> None:
    found = await kept(stores.budgets, _NO_BUDGETS).list_accounts(
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
        Console(width=max(Console().width, 120)).print(_budget_table(views))


async def _allow(
    lifted: bool | None, stores: Stores, settings: Settings, args: argparse.Namespace
) -> None:
    given = {metric: getattr(args, metric, None) for metric in METRICS}
    limits = {metric: value for metric, value in given.items() if value is not None}
    if not (limits or lifted) or not all(0 < value < float("inf") for value in limits.values()):
        raise ConfigError("budgets raise: give at least one limit above 0, such as --usd 5")
    store, account = await _account(stores, args)
    changed = await store.allow(account.key, at=time.time(), limits=limits, lifted=lifted)
    await _say_account(changed, stores, settings, args=args)


async def _reset_account(stores: Stores, settings: Settings, args: argparse.Namespace) -> None:
    store, account = await _account(stores, args)
    await store.reset(account.key, at=time.time())
    (changed,) = await store.accounts([account.key])
    await _say_account(changed, stores, settings, args=args)


async def _account(stores: Stores, args: argparse.Namespace) -> tuple[BudgetStore, Account]:
    store = kept(stores.budgets, _NO_BUDGETS)
    found = await store.accounts([AccountKey(budget=args.budget, subject=args.subject)])
    if not found:
        raise ConfigError(f"budget {args.budget!r} has no account {args.subject!r}")
    return store, found[0]


async def _known(stores: Stores, settings: Settings) -> list[BudgetSettings]:
    """The budgets of the config and of the keys."""
    known = [*settings.all_budgets()]
    for of_keys in given("key_budgets"):
        known += await of_keys(stores)
    return known


async def _say_account(
    account: Account, stores: Stores, settings: Settings, args: argparse.Namespace
) -> None:
    view = account_view(account, await _known(stores, settings), time.time())
    limits = ", ".join(amount(name, value) for name, value in view["limits"].items()) or "none"
    used = f"{account.budget} {account.subject}: used {view['used']:.0%}"
    say(as_line(view) if args.json else f"{used}, limits: {limits}")


def _budget_table(views: list[FieldDict]) -> Table:
    shown = table(
        ("budget", "subject", "last used"), ("used", "cost", "tokens", "calls", "on the way")
    )
    shown.add_column("limits")
    for view in views:
        spent = view["spent"]
        guessed = view["estimated"]
        guessed_tokens = guessed["input_tokens"] + guessed["output_tokens"]
        tokens = formatting.count(spent["input_tokens"] + spent["output_tokens"])
        limits = ", ".join(amount(name, value) for name, value in view["limits"].items())
        waiting = view["reserved"]
        reserved = f"{waiting['calls']} {formatting.money(waiting['usd'])}"
        shown.add_row(
            view["budget"],
            view["subject"],
            formatting.ago(view["updated_at"]),
            f"{view['used']:.0%} {view['step'] or ''}".strip(),
            formatting.about(formatting.money(spent["usd"]), guessed["usd"]),
            formatting.about(tokens, guessed_tokens),
            str(spent["calls"]),
            reserved if waiting["calls"] else "",
            "lifted" if view["lifted"] else limits,
        )
    return shown


async def _audit(stores: Stores, _settings: Settings, args: argparse.Namespace) -> None:
    from gateway.api.audit import AuditParameters, act_lines, acts_of
    from gateway.api.params import read_parameters

    given = ((name, getattr(args, name, None)) for name in AuditParameters.model_fields)
    chosen = {name: value for name, value in given if value}
    with reported(BadRequest):
        values = dict(read_parameters(AuditParameters, urlencode(chosen).encode()))
    if args.csv or args.json:
        async for lines in act_lines(stores.changes, values, "csv" if args.csv else "jsonl"):
            sys.stdout.write(lines.decode())
        return
    for act in (await acts_of(stores.changes, values))[0]:
        words = (act[name] for name in ("kind", "act", "subject", "author", "reason"))
        say(f"{formatting.clock(act['at'])}  {one_line('  '.join(filter(None, words)), 160)}")


async def _migrate(args: argparse.Namespace) -> int:
    settings = load_settings(args.config)
    if args.to is not None:
        return await _copy_database(settings, args)
    storage = settings.storage
    result = "storage.path is :memory:, there is nothing to migrate"
    if not storage.in_memory:
        await connect(settings)
        result = f"{storage.place} is up to date"
    answer(args, {"path": storage.place, "ok": True}, result)
    return 0


def _endpoints(storage: StorageSettings, to: str) -> tuple[StorageSettings, StorageSettings]:
    """The file that is copied, and the database it is copied to. Raises: ConfigError."""
    try:
        target = replace(storage, url=Secret(to), listen_url=None)
    except ValueError as exc:
        raise ConfigError(f"--to: {str(exc).removeprefix('url: ')}") from exc
    source = replace(storage, url=None, listen_url=None)
    if not source.in_memory and not Path(source.path).exists():
        raise ConfigError(f"--to copies the file at storage.path: there is none at {source.path!r}")
    return source, target


async def _copy_database(settings: Settings, args: argparse.Namespace) -> int:
    """Copy all rows; the file stays as it is."""
    source, target = _endpoints(settings.storage, args.to)
    with progress_bar(sys.stderr) as bar:
        task = bar.add_task("rows", total=None)
        try:
            copied = await copy_to_server(
                source,
                target,
                lambda done, total: bar.update(task, completed=done, total=total),
                vectors=settings.etraces.enabled,
            )
        except StoreError as exc:
            raise ConfigError(f"storage: {exc}") from exc
    moved = f"{sum(copied.values())} rows of {source.path} are in {target.place} now"
    shown = {"path": target.place, "ok": True, "rows": dict(copied)}
    answer(args, shown, f"{moved}; set storage.url to it")
    return 0
