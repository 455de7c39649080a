"""`gateway replay`: recorded runs, offline."""

from argparse import Namespace
from typing import Any

from gateway.commands.declared import declare


def add_parser(commands: Any) -> None:
    """Declare the command."""
    declare(commands, __name__, {"replay": _replay})


def _replay(args: Namespace) -> int:
    from gateway.offline.replay import load_policy, run_replay

    return run_replay(
        args.files,
        policy=load_policy(args.config) if args.config else None,
        as_json=args.json,
        jobs=args.jobs,
    )
