"""The command line: parse the arguments, run the command, print its result."""

import gc
import importlib
import importlib.util
import os
import re
import sys
import tomllib
from argparse import ArgumentParser, Namespace, _SubParsersAction
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NoReturn

from gateway import __version__
from gateway.errors import ConfigError
from gateway.hooks import named, paths, written
from gateway.process import collect_less_often

# The modules that declare commands, without those of features, each with its commands.
_MODULES = {
    "commands.serve": ("serve",),
    "commands.check_config": ("check-config",),
    "commands.replay": ("replay",),
    "commands.patterns": ("patterns",),
    "commands.runs": ("steering", "runs", "sessions"),
    "commands.audit_and_migrate": ("audit", "migrate"),
    "commands.backup": ("backup", "restore"),
}


class _Parser(ArgumentParser):
    """Errors name the command whose help has the answer; verbs have parsers of this class, too."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """Parse as argparse does, but for paths that follow options: these are taken, too. Unknown
        words are an error of their command, unless that one parses the rest itself."""
        # -5m is a value, too: the command says what is wrong with it.
        self._negative_number_matcher = re.compile(r"-\d")
        found, rest = super().parse_known_args(args, namespace)
        if rest and "paths" in found and not rest[0].startswith("-"):
            found.paths += rest
            return found, []
        if rest and not getattr(found, "passes_rest", False):
            is_config = rest[0].endswith((".yaml", ".yml"))
            hint = ""
            if is_config:
                hint = "; a config file is named with --config"
            self.error(f"unrecognized arguments: {' '.join(rest)}{hint}")
        return found, rest

    def error(self, message: str) -> NoReturn:
        """Print it, and end with status 2."""
        self.print_usage(sys.stderr)
        self.exit(2, f"{self.prog}: error: {message}\nTry `{self.prog} --help`.\n")


def leave(status: int) -> NoReturn:
    """End the process without the interpreter's own end. That one may crash threads that import or
    read from a terminal, and takes 0.8 s of processor time where LiteLLM is loaded."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. Returns the exit status: 0 done, 1 failed, 2 wrong usage or config."""
    if argv is None:  # the process is this command's
        gc.disable()  # what is imported stays; `_run` turns it on again
        # Latin-1 has no dash.
        sys.stdout.reconfigure(errors="replace")  # type: ignore[union-attr]
        leave(main(sys.argv[1:]))
    collect_less_often()
    try:
        return _run(argv)
    except ModuleNotFoundError as exc:
        if (exc.name or "").partition(".")[0] == "gateway":
            raise
        sys.stderr.write(f"gateway: {exc.name!r} is not installed for {sys.executable}: ")
        sys.stderr.write("in a clone of the gateway: make install\n")
        return 1


def _run(words: Sequence[str]) -> int:
    if not words or words[0] in ("-h", "--help"):
        parser = _overview()
    else:
        parser = build_parser(words[0])
    if not words:
        parser.print_help()
        return 2
    args, rest = parser.parse_known_args(words)
    args.rest = rest
    # After the parser, which answers --version and --help without the settings and the log.
    from gateway.config import LoggingSettings
    from gateway.config.load import CHOSEN_CONFIG
    from gateway.observability.logging import configure_logging

    # A server sets up its own log; what a command prints is for the terminal or another program.
    configure_logging(LoggingSettings(level="warning"), at_need=True)
    config = getattr(args, "config", None) or os.environ.get("GATEWAY_CONFIG")
    CHOSEN_CONFIG[:] = ["--config", os.path.abspath(config)] if config else []
    if not gc.isenabled():
        gc.freeze()
        gc.enable()
    try:
        status = int(args.run(args) or 0)
        sys.stdout.flush()
        return status
    except ConfigError as exc:
        for fault in exc.faults:
            print(f"gateway: {fault}", file=sys.stderr)  # noqa: T201 - the terminal is the interface
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _overview() -> ArgumentParser:
    """The parser with the names of all commands and what each is for, which their TOML files say:
    to import the modules would take ten times as long."""
    parser, commands = _program()
    helps = declared_helps()
    for name in (*written("commands"), *chain.from_iterable(_MODULES.values())):
        commands.add_parser(name, help=helps[name])
    _add_own(commands)
    return parser


def declared_helps() -> dict[str, str]:
    """The help of each command, by its name."""
    helps = {}
    for folder in (Path(__file__).with_name("commands"), *paths("")):
        for file in folder.glob("*.toml"):
            for name, about in tomllib.loads(file.read_text("utf-8")).items():
                if isinstance(about, dict) and isinstance(about.get("help"), str):
                    helps[name] = about["help"]
    return helps


def _program() -> tuple[ArgumentParser, Any]:
    """The parser without commands, and what gets them."""
    parser = _Parser(
        prog="gateway",
        description="Notices when an agent's run goes wrong, between the agent and its provider, "
        "and steers it.",
        epilog="Begin with `gateway demo`, then `gateway wrap -- COMMAND`.",
    )
    parser.add_argument("--version", action="version", version=f"gateway {__version__}")
    return parser, parser.add_subparsers(required=True, metavar="COMMAND")


def build_parser(command: str = "") -> ArgumentParser:
    """The parser of all commands; the reference is made from it. With the name
    of a `command` it may lack the others: importing their modules takes most of a short command."""
    parser, commands = _program()
    known = command == "--version" or any(command in names for names in _MODULES.values())
    if command and not known:
        of_features = named("commands", command)
    else:
        of_features = {}
    if not known:
        for add_parser in (of_features or named("commands")).values():
            add_parser(commands)
    for module, names in _MODULES.items():
        if command in names or not (known or of_features):
            importlib.import_module(f"gateway.{module}").add_parser(commands)
    _add_own(commands)
    return parser


def _add_own(commands: Any) -> None:
    # The benchmark parses its own arguments, --help included.
    summary = "measure this gateway and others side by side"
    bench = commands.add_parser("bench", help=summary, add_help=False)
    bench.set_defaults(run=_bench, passes_rest=True)


def tree(
    parser: ArgumentParser, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], ArgumentParser, str]]:
    """(words, parser, help) of each command and verb, in order; the whole program comes first."""
    yield path, parser, parser.description or ""
    for action in parser._actions:
        if isinstance(action, _SubParsersAction):
            helps = {each.dest: each.help or "" for each in action._choices_actions}
            for name, child in action.choices.items():
                for words, below, said in tree(child, (*path, name)):
                    yield words, below, said or helps.get(words[-1], "")


def _bench(args: Namespace) -> int:
    if importlib.util.find_spec("bench") is None:
        raise ConfigError("bench: not part of the package; in a clone of the source, `make bench`")
    return int(importlib.import_module("bench.__main__").main(args.rest))
