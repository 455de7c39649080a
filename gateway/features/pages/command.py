"""`gateway dashboard`: the pages of a gateway that runs, or of one for the occasion."""

import sys
from argparse import Namespace
from functools import partial
from pathlib import Path
from typing import Any

from gateway.auth.authenticator import process_key
from gateway.commands.declared import declare
from gateway.commands.serve import loaded
from gateway.commands.store import found_storage
from gateway.config import config_file, load_settings
from gateway.config.storage import is_there
from gateway.errors import ConfigError
from gateway.process.running_gateways import running_gateways


def add_parser(commands: Any) -> None:
    """Declare the command."""
    declare(commands, __name__, {"dashboard": _dashboard})


def _dashboard(args: Namespace) -> int:
    from gateway.server import serve

    path = config_file(args.config)
    settings = load_settings(path, upstreams=False)
    storage = found_storage(settings.storage, args.run_id)
    if not storage.shared and (storage.in_memory or not is_there(storage.path)):
        raise ConfigError(f"storage.path: there is no database at {storage.path!r} yet")
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


def _key_line(key: str) -> str:
    """The line with the key that changes on the pages need; empty where an admin key is set."""
    if key:
        return f"to change something there, log in with {key}\n"
    return ""
