"""`gateway serve`: start a gateway, and print its addresses and mode."""

import os
import sys
from argparse import Namespace
from functools import partial
from pathlib import Path
from typing import Any

from gateway.auth.authenticator import process_key
from gateway.commands.declared import declare
from gateway.config import Settings, config_file, load_settings
from gateway.config.values import SET_BY
from gateway.errors import ConfigError
from gateway.values import Fields


def add_parser(commands: Any) -> None:
    """Declare the command."""
    declare(commands, __name__, {"serve": _serve})


def _serve(args: Namespace) -> int:
    from gateway.server import serve

    path = config_file(args.config)
    given = {"GATEWAY_SERVER__HOST": args.host, "GATEWAY_SERVER__PORT": args.port}
    load = partial(loaded, path, given)
    settings = load()
    announce = None
    if sys.stderr.isatty():
        announce = partial(_announce, settings)
    if serve(settings, load, path, listening=announce):
        return 0
    return 1


def loaded(path: Path | None, given: Fields) -> Settings:
    """The settings of a file, with variables for what the options of a command set. Raises:
    ConfigError, which names the option."""
    asked = {name: str(each) for name, each in given.items() if each is not None}
    try:
        return load_settings(path, dict(os.environ) | asked)
    except ConfigError as error:
        faults = error.faults
    for name in asked:  # a value that came by an option is named by that, not by its variable
        option = f"--{name.rpartition('__')[2].lower()}"
        faults = tuple(each.replace(f"{SET_BY}{name})", f"{SET_BY}{option})") for each in faults)
    raise ConfigError(*faults)


def _announce(settings: Settings, url: str) -> None:
    """Print the facts for somebody at a terminal."""
    sys.stderr.write(facts(settings, url))
    sys.stderr.flush()


def facts(settings: Settings, url: str) -> str:
    """Addresses, database and mode of the gateway at `url`, one line each."""
    from gateway.text.page import rendered

    routes = ", ".join(f"{state} {model}" for state, model in settings.model_routing.items())
    values = {"settings": settings, "url": url, "key": process_key(), "routes": routes}
    return rendered(__package__, "serve.txt", values)
