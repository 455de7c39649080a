"""`gateway hooks`: install, remove, run."""

import os
import sys
from argparse import Namespace
from collections.abc import Callable
from difflib import unified_diff
from typing import Any

from msgspec import ValidationError

from gateway.commands.declared import declare
from gateway.commands.store import reported, say
from gateway.errors import ConfigError
from gateway.features.client_hooks import answer, install


def add_parser(commands: Any) -> None:
    """Declare the command."""
    does = {"hooks install": _install, "hooks remove": _remove, "hooks run": _run}
    declare(commands, __name__, does, agents=tuple(install.AGENTS))


def _install(args: Namespace) -> int:
    hook = _hook(args)
    answer.list_of(hook)  # a config that is refused is refused here
    return _change(args, lambda text: install.with_hooks(text, hook))


def _remove(args: Namespace) -> int:
    return _change(args, lambda text: install.without_hooks(text, args.agent))


def _change(args: Namespace, edit: Callable[[str], str]) -> int:
    """Show a change of the agent's settings, and make it if the person agrees. Raises ConfigError:
    it cannot be made without loss, or nobody can be asked."""
    path = install.settings_file(args.agent)
    try:
        before = path.read_bytes().decode() if path.exists() else ""
        after = edit(before)
    except (OSError, ValueError, ValidationError) as exc:
        raise ConfigError(f"{path}: cannot be changed without loss: {exc}") from exc
    if before == after:
        say(f"{path}: nothing to change")
        return 0
    lines = unified_diff(before.splitlines(), after.splitlines(), str(path), lineterm="")
    say("\n".join(lines))
    if not args.yes:
        if not sys.stdin.isatty():
            raise ConfigError("nobody can be asked without a terminal; --yes makes the change")
        if input(f"Make this change? {install.AGENTS[args.agent][-1]}[y/N] ").lower() != "y":
            return 1
    with reported():
        install.change(path, args.agent, before, after=after)
    return 0


def _run(args: Namespace) -> None:
    answer.main([*map(str, _hook(args))])


def _hook(args: Namespace) -> answer.Hook:
    config = ""
    if args.config:
        config = os.path.abspath(args.config)
    return answer.Hook(args.agent, folder=install.hooks_folder(), config=config)
