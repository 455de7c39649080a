"""The options of `gateway wrap`."""

from argparse import Namespace
from typing import Any

from gateway.commands.declared import declare


def add_parser(commands: Any) -> None:
    """Declare the command."""
    declare(commands, __name__, {"wrap": _wrap})


def _wrap(args: Namespace) -> int:
    from gateway.features.wrap.wrap import WrapOptions, wrap

    command = [*args.rest, *args.command]
    if command and command[0] == "--":
        del command[0]
    names = (
        "config",
        "mode",
        "budget",
        "stop_after",
        "sub_agents",
        "outcome_from",
        "gateway",
        "quiet",
    )
    options = {name: getattr(args, name) for name in names}
    return wrap(WrapOptions(command=tuple(command), as_json=args.json, **options))
