"""The command line: parse the arguments, run the command, print its result."""

from __future__ import annotations

import argparse
import asyncio
import importlib
import importlib.util
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gateway import __version__
from gateway.commands import (
    alerts,
    budgets,
    completion,
    keys,
    learn,
    migrate,
    patterns,
    recorded,
    report,
    runs,
    serve,
    wrap,
)
from gateway.config import DEFAULT_FILE, LoggingSettings, ignored_keys, load_settings, read_file
from gateway.errors import ConfigError
from gateway.observability.logging import configure_logging


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. Returns the exit status: 0 done, 1 failed, 2 wrong usage or config."""
    parser = build_parser()
    words = sys.argv[1:] if argv is None else argv
    if not words:
        parser.print_help()
        return 2
    args, rest = parser.parse_known_args(argv)
    args.rest = rest
    if rest and not getattr(args, "passes_rest", False):
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    # A server sets up its own log; what a command prints is for the terminal or another program.
    configure_logging(LoggingSettings(level="warning"), sys.stderr)
    try:
        return int(args.run(args) or 0)
    except ConfigError as exc:
        print(f"gateway: {exc}", file=sys.stderr)  # noqa: T201 - the terminal is the interface
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def build_parser() -> argparse.ArgumentParser:
    """The parser of all commands; the reference and the completions are made from it."""
    parser = argparse.ArgumentParser(
        prog="gateway",
        description="Notices when an agent's run goes wrong, between the agent and its provider, "
        "and steers it.",
        epilog="Begin with `gateway demo`, then `gateway wrap -- COMMAND`.",
    )
    parser.add_argument("--version", action="version", version=f"gateway {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_demo(commands)
    wrap.add_parser(commands)
    serve.add_parser(commands)
    _add_check_config(commands)
    for module in (recorded, patterns, learn, runs, report, budgets, keys, alerts, migrate):
        module.add_parser(commands)
    _add_bench(commands)
    completion.add_parser(commands, build_parser)
    return parser


def _add_demo(commands: Any) -> None:
    demo = commands.add_parser("demo", help="show a steered run, offline and without a key")
    demo.add_argument(
        "--keep", action="store_true", help="record its runs in storage.path, for the dashboard"
    )
    demo.add_argument("--config", type=Path, help=f"config file (default: ./{DEFAULT_FILE})")
    demo.set_defaults(run=_demo)


def _add_check_config(commands: Any) -> None:
    check = commands.add_parser("check-config", help="check the config and report what is wrong")
    check.add_argument("--config", type=Path, help=f"config file (default: ./{DEFAULT_FILE})")
    check.add_argument("--json", action="store_true", help="one JSON object on stdout")
    check.add_argument(
        "--connect", action="store_true", help="also connect to the database and check its schema"
    )
    check.set_defaults(run=_check_config)


def _add_bench(commands: Any) -> None:
    # The benchmark parses its own arguments, --help included.
    bench = commands.add_parser(
        "bench", help="measure this gateway and others side by side", add_help=False
    )
    bench.set_defaults(run=_bench, passes_rest=True)


def _demo(args: argparse.Namespace) -> int:
    from gateway.demo import run_demo

    if not args.keep:
        return 0 if run_demo() else 1
    storage = load_settings(args.config).storage
    if storage.in_memory or storage.url is not None:
        raise ConfigError("demo --keep: storage.path must name a file")
    worked = run_demo(database=Path(storage.path))
    _print(f"The two runs are in {storage.path}: `gateway serve`, then open its /dashboard.")
    return 0 if worked else 1


def _check_config(args: argparse.Namespace) -> int:
    from gateway.commands.config_warnings import config_warnings
    from gateway.commands.migrate import connect
    from gateway.server import check

    path = serve.config_file(args.config)
    ignored: list[str] = []
    warnings: list[str] = []
    problem = None
    try:
        ignored = ignored_keys(read_file(path)) if path else []
        settings = load_settings(args.config)
        check(settings)
        warnings = list(config_warnings(settings, os.environ))
        if args.connect:
            asyncio.run(connect(settings))
    except ConfigError as exc:
        problem = str(exc)
    if args.json:
        report: dict[str, Any] = {"config": str(path) if path else None, "ok": problem is None}
        report |= {"problem": problem, "ignored": ignored, "warnings": warnings}
        _print(json.dumps(report))
    else:
        for key in ignored:
            _print(f"note: {key} is a setting of the LiteLLM proxy and has no effect here")
        for warning in warnings:
            _print(f"warning: {warning}")
        named = problem is not None and path is not None and problem.startswith(str(path))
        _print(str(problem) if named else f"{path or 'defaults'}: {problem or 'ok'}")
    return 2 if problem else 0


def _bench(args: argparse.Namespace) -> int:
    if importlib.util.find_spec("bench") is None:
        raise ConfigError("bench: not part of the package; in a clone of the source, `make bench`")
    return int(importlib.import_module("bench.__main__").main(args.rest))


def _print(text: str) -> None:
    sys.stdout.write(text + "\n")
