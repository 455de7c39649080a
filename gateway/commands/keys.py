"""`gateway keys`: creates, lists, revokes and resets keys; a gateway notices within a second."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from typing import Any

from gateway.auth.keyring import make_key
from gateway.backends import Stores
from gateway.commands.store import add_verb, say
from gateway.config import Settings
from gateway.errors import ConfigError
from gateway.stores.records import KeyRecord
from gateway.text.formatting import clock
from gateway.text.sanitize import one_line


def add_parser(commands: Any) -> None:
    """Declare the command and its verbs."""
    keys = commands.add_parser("keys", help="create, list, revoke and reset gateway keys")
    verbs = keys.add_subparsers(required=True, metavar="VERB")
    created = add_verb(verbs, "create", "create a key, which is shown only once", _create)
    created.add_argument("tenant", help="the tenant whose runs it creates and reads")
    created.add_argument("--name", default="", help="a note on its purpose")
    summary = "list the keys, without their secrets"
    listed = add_verb(verbs, "list", summary, _list, existing=True, whole=True)
    listed.add_argument("--tenant", help="only the keys of this tenant")
    revoked = add_verb(verbs, "revoke", "revoke a key", _revoke, existing=True)
    revoked.add_argument("key_id", help="the id that `gateway keys list` shows")
    summary = "delete all keys made with `create`, so that none is required"
    reset = add_verb(verbs, "reset", summary, _reset, existing=True, whole=True)
    reset.add_argument("--yes", action="store_true", help="do not ask for confirmation")


async def _create(stores: Stores, settings: Settings, args: argparse.Namespace) -> None:
    made = make_key(args.tenant, args.name)
    first = not settings.auth.gateway_keys and not await stores.keys.list_keys()
    await stores.keys.add_key(made.record)
    if first:  # apart from the key, which scripts read on stdout
        _note(
            "this is the first key: from now on every request needs one; "
            "`gateway keys reset` deletes all keys and ends that"
        )
    if args.json:
        say(json.dumps({**_plain(made.record), "key": made.text}))
        return
    say(made.text)
    say(f"  {made.record.id}, tenant {args.tenant}; store the key now, it is not shown again")


async def _list(stores: Stores, settings: Settings, args: argparse.Namespace) -> None:
    keys = await stores.keys.list_keys()
    for key in keys:
        if args.tenant in (None, key.tenant):
            say(json.dumps(_plain(key)) if args.json else _line(key))
    if settings.auth.gateway_keys:
        _note("requests need a key: auth.gateway_keys of the config has some, too")
    elif not keys:
        _note("no keys, so no request needs one; `gateway keys create` makes the first")


async def _revoke(stores: Stores, _settings: Settings, args: argparse.Namespace) -> None:
    if not await stores.keys.revoke_key(args.key_id, time.time()):
        raise ConfigError(f"there is no valid key {args.key_id!r} to revoke")
    say(json.dumps({"revoked": args.key_id}) if args.json else f"{args.key_id} revoked")


async def _reset(stores: Stores, settings: Settings, args: argparse.Namespace) -> None:
    if not args.yes:
        await _confirm()
    deleted = await stores.keys.delete_keys()
    say(json.dumps({"deleted": deleted}) if args.json else f"{deleted} valid keys deleted")
    if settings.auth.gateway_keys:
        _note("requests still need a key: auth.gateway_keys of the config has some")
    else:
        _note("no request needs a key now")


async def _confirm() -> None:
    """Ask at the terminal. Raises: ConfigError when there is none, or the answer is not yes."""
    if not sys.stdin.isatty():
        raise ConfigError("keys reset: without a terminal to ask at, confirm with --yes")
    _note("all keys stop working, and requests without a key are answered; type yes to go on: ")
    if (await asyncio.to_thread(sys.stdin.readline)).strip().lower() != "yes":
        raise ConfigError("keys reset: not confirmed, nothing is changed")


def _note(text: str) -> None:
    sys.stderr.write(f"gateway: {text}\n")


def _plain(key: KeyRecord) -> dict[str, Any]:
    """Every field except the digest."""
    return {
        "id": key.id,
        "tenant": key.tenant,
        "name": key.name,
        "hint": key.hint,
        "created_at": key.created_at,
        "revoked_at": key.revoked_at,
    }


def _line(key: KeyRecord) -> str:
    state = "good" if key.revoked_at is None else f"revoked {clock(key.revoked_at)}"
    return (
        f"{key.id}  {key.hint}…  {one_line(key.tenant, 30):30}  {clock(key.created_at)}  {state}"
        f"{'  ' + one_line(key.name, 40) if key.name else ''}"
    )
