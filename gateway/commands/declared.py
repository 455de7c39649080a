"""Commands and verbs as a TOML file beside their module declares them."""

import asyncio
from collections.abc import Callable
from functools import partial
from inspect import iscoroutinefunction
from pathlib import Path
from typing import Any

from gateway.data_files import read_toml
from gateway.values import FieldDict, Fields

_TYPES: Fields = {"int": int, "float": float, "path": Path}


def declare(commands: Any, module: str, does: Fields, **known: Any) -> FieldDict:
    """Declare the commands that the TOML file of `module` describes.

    Each is a table named by its words: `help`, `options` as argparse takes them, `groups` of more
    options, `one_of` for options of which one must be given, `acts` for what changes something (its
    kind in the audit log), `sets` for fixed values. It works on the stores, also on those of a
    gateway that runs, and takes `--config` and `--json`; it `creates` the database, takes its `own`
    alone, or needs the `whole` config with the providers' keys. With `stores = false` it is only
    called.

    does: the function of each command, by its words. known: values and groups that the file names.
    Returns the parsers by their words.
    """
    package, _, name = module.rpartition(".")
    declared = read_toml(package, f"{name}.toml")
    known = {**_TYPES, **declared.pop("groups", {}), **known}
    parsers: FieldDict = {}
    verbs: FieldDict = {"": commands}
    for words, about in declared.items():
        above, _, verb = words.rpartition(" ")
        if above not in verbs:
            verbs[above] = parsers[above].add_subparsers(required=above not in does, metavar="VERB")
        parser = parsers[words] = verbs[above].add_parser(
            verb, help=about["help"], usage=about.get("usage")
        )
        if words in does:
            parser.set_defaults(run=_runner(parser, about, does[words]))
        if "one_of" in about:
            one = parser.add_mutually_exclusive_group(required=True)
            _add_options(one, about["one_of"], known)
        _add_options(parser, about.get("options", {}), known)
        for group in about.get("groups", ()):
            _add_options(parser, known[group], known)
        if "acts" in about:
            from gateway.commands.store import add_acts

            add_acts(about["acts"], parser)
        parser.set_defaults(**about.get("sets", {}))
    return parsers


def _runner(parser: Any, about: Fields, command: Callable[..., Any]) -> Callable[..., Any]:
    run = command
    if about.get("stores", True):
        from gateway.commands.store import run_on_stores  # it imports all stores

        parser.add_argument("--config", type=Path, help="config file (default: ./config.yaml)")
        parser.add_argument("--json", action="store_true", help="JSON on stdout")
        needs = {name: about.get(name, False) for name in ("creates", "whole", "own")}
        run = partial(run_on_stores, command, **needs)
    if iscoroutinefunction(run):
        return lambda args: asyncio.run(run(args))
    return run


def _add_options(parser: Any, options: Fields, known: Fields) -> None:
    for option, about in options.items():
        named = {
            name: known[about[name]]
            for name in ("type", "choices")
            if isinstance(about.get(name), str)
        }
        parser.add_argument(option, **about | named)
