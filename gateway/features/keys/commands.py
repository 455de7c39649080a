"""`gateway keys`: makes, changes, rotates and revokes gateway keys."""

import sys
import time
from argparse import Namespace
from typing import Any

from gateway.backends import Stores
from gateway.commands.declared import declare
from gateway.commands.store import answer, confirmed, kept
from gateway.config import Settings
from gateway.errors import ConfigError
from gateway.features.keys.keyring import NewKey, create_key, key_view, read_terms, rotate_key
from gateway.features.keys.store import KeyStore
from gateway.text import formatting
from gateway.text.sanitize import one_line
from gateway.values import FieldDict


def add_keys(commands: Any) -> None:
    """Declare the command and its verbs."""
    does = {
        "keys create": _create_key,
        "keys set": _change_key,
        "keys rotate": _rotate_key,
        "keys list": _list_keys,
        "keys revoke": _revoke_key,
        "keys reset": _reset_keys,
    }
    declare(commands, __name__, does)


def _keys(stores: Stores) -> KeyStore:
    return kept(stores.of(KeyStore), "this store keeps no keys")


async def _create_key(stores: Stores, settings: Settings, args: Namespace) -> None:
    first = not settings.auth.names_keys and not await _keys(stores).list_keys()
    terms = read_terms(vars(args))
    made = await create_key(_keys(stores), args.tenant, args.name, terms=terms)
    args.key_id = made.record.id
    if first:  # apart from the key, which scripts read on stdout
        _note(
            "this is the first key: from now on every request needs one; "
            "`gateway keys reset` deletes all keys and ends that"
        )
    _say_made(made, args)


def _say_made(made: NewKey, args: Namespace) -> None:
    about = f"{made.record.id}, tenant {made.record.tenant}; store the key now"
    shown = {**key_view(made.record), "key": made.text}
    answer(args, shown, f"{made.text}\n  {about}, it is not shown again")


async def _change_key(stores: Stores, _settings: Settings, args: Namespace) -> None:
    if not (changes := read_terms(vars(args))):
        raise ConfigError("keys set: give at least one term to change, such as --usd 20")
    changed = kept(await _keys(stores).change_key(args.key_id, changes), _NO_KEY % args.key_id)
    answer(args, key_view(changed), _key_line(key_view(changed)))


async def _rotate_key(stores: Stores, _settings: Settings, args: Namespace) -> None:
    made = await rotate_key(_keys(stores), args.key_id, args.overlap)
    _say_made(kept(made, _NO_KEY % args.key_id), args)


_NO_KEY = "there is no valid key %r"


async def _list_keys(stores: Stores, settings: Settings, args: Namespace) -> None:
    keys = await _keys(stores).list_keys()
    for key in keys:
        if args.tenant in (None, key.tenant):
            answer(args, key_view(key), _key_line(key_view(key)))
    if settings.auth.names_keys:
        _note("requests need a key: auth.gateway_keys of the config has some, too")
    elif not keys:
        _note("no keys, so no request needs one; `gateway keys create` makes the first")


async def _revoke_key(stores: Stores, _settings: Settings, args: Namespace) -> None:
    if not await _keys(stores).revoke_key(args.key_id, time.time()):
        raise ConfigError(_NO_KEY % args.key_id)
    answer(args, {"revoked": args.key_id}, f"{args.key_id} revoked")


async def _reset_keys(stores: Stores, settings: Settings, args: Namespace) -> None:
    await confirmed(args, "all keys stop working, and requests without a key are answered.")
    deleted = await _keys(stores).delete_keys()
    answer(args, {"deleted": deleted}, f"{deleted} valid keys deleted")
    some = "requests still need a key: auth.gateway_keys of the config has some"
    _note(some if settings.auth.names_keys else "no request needs a key now")


def _note(text: str) -> None:
    sys.stderr.write(f"gateway: {text}\n")


def _key_line(key: FieldDict) -> str:
    ended = key["revoked_at"] or key["expires_at"]
    until = ""
    if ended:
        until = f" {'until ' * (key['state'] == 'valid')}{formatting.clock(ended)}"
    about = "  ".join(one_line(key[n], 40) for n in ("name", "owner", "team") if key[n])
    return (
        f"{key['id']}  {key['hint']}…  {one_line(key['tenant'], 30):30}  "
        f"{formatting.clock(key['created_at'])}  {key['state']}{until}  {about}".rstrip()
    )
