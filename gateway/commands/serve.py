"""`gateway serve`: start a gateway, and print its addresses and mode."""

import argparse
import os
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from gateway.auth.authenticator import process_key
from gateway.commands.declared import declare
from gateway.config import DEFAULT_FILE, Settings, load_settings
from gateway.config.values import SET_BY
from gateway.errors import ConfigError
from gateway.text.sanitize import one_line
from gateway.values import Fields

_VALUE_CHARS = 66
_MODES = {
    "on": "runs in trouble get guidance",
    "shadow": "everything is computed and recorded, no byte changed",
    "off": "requests are recorded, nothing is computed from them",
}


def add_parser(commands: Any) -> None:
    """Declare the command."""
    declare(commands, __name__, {"serve": _serve})


def config_file(given: Path | None) -> Path | None:
    """The config file that a command reads; None when there is none."""
    if given is not None:
        return given
    if chosen := os.environ.get("GATEWAY_CONFIG"):
        return Path(chosen)
    if Path(DEFAULT_FILE).exists():
        return Path(DEFAULT_FILE)
    return None


def _serve(args: argparse.Namespace) -> int:
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
    lines = [f"  {name:<11} {one_line(text, _VALUE_CHARS)}" for name, text in facts(settings, url)]
    sys.stderr.write("\n" + "\n".join(lines) + "\n\n")
    sys.stderr.flush()


def facts(settings: Settings, url: str) -> Iterator[tuple[str, str]]:
    """Addresses, database and mode of the gateway at `url`: names and values, one line each."""
    storage = settings.storage
    mode = settings.steering.mode
    yield "agents", f"OPENAI_BASE_URL={url}/v1"
    yield "", f"ANTHROPIC_BASE_URL={url}"
    yield "dashboard", f"{url}/dashboard"
    if not settings.auth.admin_key:
        yield "", f"log in with {process_key()}"
    yield "upstream", settings.default_upstream.api_base
    if settings.model_list:
        names = sorted({each.model_name for each in settings.model_list})
        yield "models", ", ".join(names)
    place = storage.file or storage.place
    yield "database", "in memory, gone when the gateway ends" if storage.in_memory else place
    yield "mode", f"{mode}: {_MODES[mode]}"
    routes = ", ".join(f"{state} {model}" for state, model in settings.model_routing.items())
    if mode == "on":
        yield "routing", routes or "none: the model is always the one that was asked for"
        yield "only watch", "GATEWAY_STEERING__MODE=shadow, or header x-gateway-mode: shadow"
