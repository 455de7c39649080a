"""`gateway bench`: the measurements of the source tree, which are no part of the package."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
from typing import Any

from gateway.errors import ConfigError


def add_parser(commands: Any) -> None:
    """Declare the command; its arguments are the benchmark's own."""
    bench = commands.add_parser(
        "bench", help="measure this gateway and its peers in one run", add_help=False
    )
    bench.set_defaults(run=_bench, passes_on=True)


def _bench(args: argparse.Namespace) -> int:
    if importlib.util.find_spec("bench") is None:
        raise ConfigError("bench: only a clone of the source has it; there, run `make bench`")
    return int(importlib.import_module("bench.__main__").main(args.rest))
