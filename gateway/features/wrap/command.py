"""The options of `gateway wrap`."""

import argparse
from pathlib import Path
from typing import Any


def add_parser(commands: Any) -> None:
    """Declare the command."""
    summary = "run an agent with a gateway before its provider, and sum up what happened"
    usage = "gateway wrap [options] -- COMMAND..."
    parser = commands.add_parser("wrap", help=summary, usage=usage)
    parser.add_argument("--config", type=Path, help="config file (default: ./config.yaml)")
    mode = "on steers, shadow only watches and changes no byte (default: steering.mode)"
    parser.add_argument("--mode", choices=("on", "shadow", "off"), help=mode)
    budget = "stop COMMAND's calls when they have cost this much: asks it to hand over its work "
    budget += "at 90 %%, then answers that the budget is used up"
    parser.add_argument("--budget", metavar="USD", help=budget)
    after = "the same after a time (30m, 2h) or a number of calls (50)"
    parser.add_argument("--stop-after", metavar="AMOUNT", help=after)
    check = "report an outcome: success if CMD, or with `exit` the wrapped command, ends with 0"
    parser.add_argument("--outcome-from", metavar="CMD", help=check)
    gateway = "use the gateway at URL, or the newest one that runs, instead of starting one"
    parser.add_argument("--gateway", nargs="?", const="running", metavar="URL", help=gateway)
    parser.add_argument("--json", action="store_true", help="the summary as JSON on stderr")
    parser.add_argument("--quiet", action="store_true", help="print nothing but what COMMAND does")
    words = "with its arguments"
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="COMMAND", help=words)
    parser.set_defaults(run=_wrap, passes_rest=True)


def _wrap(args: argparse.Namespace) -> int:
    from gateway.features.wrap.wrap import WrapOptions, wrap

    command = [*args.rest, *args.command]
    if command and command[0] == "--":
        del command[0]
    names = ("config", "mode", "budget", "stop_after", "outcome_from", "gateway", "quiet")
    options = {name: getattr(args, name) for name in names}
    return wrap(WrapOptions(command=tuple(command), as_json=args.json, **options))
