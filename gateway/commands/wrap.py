"""`gateway wrap -- COMMAND...`: run an agent with a gateway before its provider."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any


def add_parser(commands: Any) -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "wrap",
        help="run an agent with a gateway before its provider, and sum up what happened",
        usage="gateway wrap [options] -- COMMAND...",
    )
    parser.add_argument("--config", type=Path, help="config file (default: ./config.yaml)")
    parser.add_argument(
        "--mode",
        choices=("on", "shadow", "off"),
        help="on steers, shadow only watches and changes no byte (default: steering.mode)",
    )
    parser.add_argument(
        "--budget",
        metavar="USD",
        help="stop COMMAND's calls when they have cost this much: asks it to hand over its work "
        "at 90 %%, then answers that the budget is used up",
    )
    parser.add_argument(
        "--stop-after",
        metavar="AMOUNT",
        help="the same after a time (30m, 2h) or a number of calls (50)",
    )
    parser.add_argument(
        "--gateway",
        nargs="?",
        const="running",
        metavar="URL",
        help="use the gateway at URL, or the newest one that runs, instead of starting one",
    )
    parser.add_argument("--json", action="store_true", help="the summary as JSON on stderr")
    parser.add_argument("--quiet", action="store_true", help="print nothing but what COMMAND does")
    parser.add_argument(
        "command", nargs=argparse.REMAINDER, metavar="COMMAND", help="with its arguments"
    )
    parser.set_defaults(run=_wrap, passes_rest=True)


def _wrap(args: argparse.Namespace) -> int:
    from gateway.wrap import WrapOptions, wrap

    command = [*args.rest, *args.command]
    if command and command[0] == "--":
        del command[0]
    return wrap(
        WrapOptions(
            command=tuple(command),
            config=args.config,
            mode=args.mode,
            budget=args.budget,
            stop_after=args.stop_after,
            gateway=args.gateway,
            as_json=args.json,
            quiet=args.quiet,
        )
    )
