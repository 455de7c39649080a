"""`gateway demo`: a steered run, offline and without a key; `--keep` records its runs."""

import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

from gateway.commands.declared import declare
from gateway.config import load_settings
from gateway.errors import ConfigError


def add_parser(commands: Any) -> None:
    """Declare the command."""
    declare(commands, __name__, {"demo": _demo})


def _demo(args: Namespace) -> int:
    from gateway.features.demo.show import run_demo

    database = None
    if args.keep:
        storage = load_settings(args.config).storage
        if not storage.file:
            raise ConfigError("demo --keep: storage.path must name a file")
        database = Path(storage.path)
    worked = run_demo(database=database)
    if database:
        sys.stdout.write(f"The two runs are in {database}: `gateway serve`, then /dashboard.\n")
    return int(not worked)
