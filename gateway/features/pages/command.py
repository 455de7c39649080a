"""`gateway dashboard`: the pages of a gateway that runs, or of one for the occasion."""

import asyncio
import sys
from argparse import Namespace
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from gateway.auth.authenticator import process_key
from gateway.backends import Stores
from gateway.commands.declared import declare
from gateway.commands.serve import loaded
from gateway.commands.store import found_storage, kept, reported, run_on
from gateway.config import Settings, config_file, load_settings
from gateway.process.running_gateways import running_gateways


def add_parser(commands: Any) -> None:
    """Declare the command."""
    declare(commands, __name__, {"dashboard": _dashboard})


def _dashboard(args: Namespace) -> int:
    from gateway.server import serve

    path = config_file(args.config)
    settings = load_settings(path, upstreams=False)
    storage = found_storage(settings.storage, args.run_id)
    with reported():
        asyncio.run(run_on(_known, replace(settings, storage=storage), args))
    page = "/dashboard"
    if args.run_id:
        page = f"/dashboard/runs/{args.run_id}"
    database = str(Path(storage.path).absolute())
    for each in running_gateways():
        if each.database == database:
            sys.stdout.write(f"{each.url}{page}\n{_key_line(each.key)}")
            return 0
    given = {"GATEWAY_SERVER__PORT": args.port, "GATEWAY_LOGGING__LEVEL": "warning"}
    if not storage.shared:
        given["GATEWAY_STORAGE__PATH"] = storage.path
    load = partial(loaded, path, given)

    def announce(url: str) -> None:
        sys.stdout.write(f"{url}{page}\n{_key_line(process_key())}(until Ctrl-C)\n")
        sys.stdout.flush()

    if serve(load(), load, path, listening=announce):
        return 0
    return 1


async def _known(stores: Stores, _settings: Settings, args: Namespace) -> None:
    """Raises: ConfigError: a run is named that is not there."""
    from gateway.api.runs import run_named

    if args.run_id:
        run = await run_named(stores.runs, args.run_id, None)
        args.run_id = kept(run, f"there is no run {args.run_id!r}").id


def _key_line(key: str) -> str:
    """The line with the key that changes on the pages need; empty where an admin key is set."""
    if key:
        return f"to change something there, log in with {key}\n"
    return ""
