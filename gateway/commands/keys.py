"""`gateway keys`: who may use the gateway; a running one notices within a second."""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

from gateway.backends import Stores
from gateway.commands.store import add_verb, say
from gateway.config import Settings
from gateway.errors import ConfigError
from gateway.figures import clock
from gateway.keys import make_key
from gateway.stores.keys import KeyRecord
from gateway.visible import one_line


def add_parser(commands: Any) -> None:
    """Declare the command and its verbs."""
    keys = commands.add_parser("keys", help="create, list and revoke gateway keys")
    verbs = keys.add_subparsers(required=True, metavar="VERB")
    created = add_verb(verbs, "create", "make a key; it is shown this once", _create)
    created.add_argument("tenant", help="whose runs it makes and sees")
    created.add_argument("--name", default="", help="what it is for")
    listed = add_verb(verbs, "list", "the keys, without the keys themselves", _list)
    listed.add_argument("--tenant", help="of one tenant")
    revoked = add_verb(verbs, "revoke", "make a key useless", _revoke)
    revoked.add_argument("key_id", help="its id, as `gateway keys list` shows it")


async def _create(stores: Stores, _settings: Settings, args: argparse.Namespace) -> None:
    made = make_key(args.tenant, args.name)
    await stores.keys.add_key(made.record)
    if args.json:
        say(json.dumps({**_plain(made.record), "key": made.text}))
        return
    say(made.text)
    say(f"  {made.record.id}, tenant {args.tenant}; keep it, it is not shown again")


async def _list(stores: Stores, _settings: Settings, args: argparse.Namespace) -> None:
    for key in await stores.keys.list_keys():
        if args.tenant in (None, key.tenant):
            say(json.dumps(_plain(key)) if args.json else _line(key))


async def _revoke(stores: Stores, _settings: Settings, args: argparse.Namespace) -> None:
    if not await stores.keys.revoke_key(args.key_id, time.time()):
        raise ConfigError(f"there is no key {args.key_id!r} to revoke")
    say(json.dumps({"revoked": args.key_id}) if args.json else f"{args.key_id} revoked")


def _plain(key: KeyRecord) -> dict[str, Any]:
    """Everything but the digest."""
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
