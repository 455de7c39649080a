"""`gateway hooks`: install, remove, run."""

import os
from argparse import Namespace
from typing import Any

from gateway.commands.declared import declare
from gateway.features.client_hooks import answer, install


def add_parser(commands: Any) -> None:
    """Declare the command."""
    does = {"hooks install": _install, "hooks remove": _remove, "hooks run": _run}
    declare(commands, __name__, does, agents=tuple(install.AGENTS))


def _install(args: Namespace) -> int:
    hook = _hook(args)
    answer.list_of(hook)  # a config that is refused is refused here
    return install.change(args.agent, lambda text: install.with_hooks(text, hook), yes=args.yes)


def _remove(args: Namespace) -> int:
    return install.change(
        args.agent, lambda text: install.without_hooks(text, args.agent), yes=args.yes
    )


def _run(args: Namespace) -> None:
    answer.main([*map(str, _hook(args))])


def _hook(args: Namespace) -> answer.Hook:
    config = ""
    if args.config:
        config = os.path.abspath(args.config)
    return answer.Hook(args.agent, folder=install.hooks_folder(), config=config)
