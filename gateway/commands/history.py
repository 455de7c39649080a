"""`gateway history`: the sessions that agents keep on this machine, read where they are."""

from __future__ import annotations

import argparse
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gateway.config import DEFAULT_FILE
from gateway.errors import ConfigError
from gateway.text.sanitize import visible

if TYPE_CHECKING:
    from gateway.history.find import Found
    from gateway.history.gather import Wanted
    from gateway.history.reading import SessionReading

_PATHS = (
    "files or folders of session logs, or a git repository with Entire checkpoints (default: what "
    "agents keep in the home directory)"
)


_NEXT = "Next: `gateway wrap --mode shadow -- COMMAND` watches a session, and steers nothing."


def add_parser(commands: Any) -> None:
    """Declare the command."""
    history = commands.add_parser(
        "history", help="your agents' past sessions: cost, trouble, and what you had to say"
    )
    history.add_argument("paths", nargs="*", metavar="PATH", help=f"{_PATHS}; `show ID`: read one")
    history.add_argument("--since", default="", metavar="DATE", help="a date, or 7d, 4w")
    history.add_argument("--project", default="", help="folder contains this text")
    history.add_argument("--agent", default="", help="only this agent, such as codex")
    form = history.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="one JSON object per session and line")
    form.add_argument("--html", metavar="FILE", help="also write one self-contained HTML page")
    keep = "import them into the store as past runs, for the dashboard and lessons; each once"
    history.add_argument("--keep", action="store_true", help=keep)
    config = f"config file that --keep reads (default: ./{DEFAULT_FILE})"
    history.add_argument("--config", type=Path, help=config)
    history.add_argument("--steps", default="", metavar="A-B", help="with show: only these steps")
    history.add_argument("--jobs", type=int, help="processes (default: one per core)")
    history.set_defaults(run=_history)


def _history(args: argparse.Namespace) -> int:
    from gateway.history.gather import Wanted, read_all, since
    from gateway.steering.policy import Policy

    if args.paths[-2:-1] == ["show"]:
        return _show(args)
    if args.steps:
        raise ConfigError("--steps: only with `show ID`")
    if args.json and args.keep:
        raise ConfigError("--keep: not with --json, which writes nothing but its lines")
    begin = since(args.since, datetime.now(UTC)) if args.since else None
    wanted = Wanted(since=begin, project=args.project, agent=args.agent)
    found = _found(args)
    readings: list[SessionReading] = []
    problems = 0
    for each in read_all(found, Policy(), err=sys.stderr, jobs=args.jobs):
        if each.problem:
            problems += 1
            sys.stderr.write(f"gateway: {visible(each.problem)}\n")
        readings += filter(wanted.takes, each.sessions)
    if args.json:
        from gateway.history.as_json import session_line

        for reading in sorted(readings, key=lambda r: (r.started or 0.0, r.id)):
            sys.stdout.write(session_line(reading))
        return 1 if problems else 0
    if not readings:
        raise ConfigError(_nothing(args, len(found), problems))
    from rich.console import Console

    from gateway.history.screen import print_screen
    from gateway.history.summary import summarise

    console = Console(width=None if sys.stdout.isatty() else 120, highlight=False)
    summary, options = summarise(readings), [str(path) for path in args.paths]
    print_screen(summary, console, options=options)
    if args.html:
        from gateway.history.page import write_page

        write_page(Path(args.html), summary, found, Policy(), options)
        console.print(f"page: {args.html}", markup=False)
    if args.keep:
        return _keep(args, found, wanted)
    if not (args.paths or args.html):
        console.print(_NEXT, style="dim", markup=False)
    return 1 if problems else 0


def _keep(args: argparse.Namespace, found: list[Found], wanted: Wanted) -> int:
    from gateway.commands.keep import run_keep
    from gateway.config import load_settings

    logs = [each for each in found if each.format is not None]
    return run_keep(logs, load_settings(args.config), sys.stdout, sys.stderr, wanted.takes)


def _show(args: argparse.Namespace) -> int:
    from rich.console import Console

    from gateway.history.show import show
    from gateway.steering.policy import Policy

    if args.json or args.html or args.keep:
        raise ConfigError("show: prints one session, without --json, --html and --keep")
    *args.paths, _, name = args.paths
    console = Console(width=None if sys.stdout.isatty() else 120, highlight=False)
    show(_found(args), name, args.steps, Policy(), console)
    return 0


def _found(args: argparse.Namespace) -> list[Found]:
    from gateway.history.find import at_home, named

    if args.paths:
        return named(Path(path) for path in args.paths)
    return at_home(Path.home())


def _nothing(args: argparse.Namespace, files: int, problems: int) -> str:
    if files > problems:
        return "no session fits --since, --project and --agent"
    if args.paths:
        return f"no session log in {', '.join(args.paths)}"
    from gateway.history.readers import formats

    homes = [pattern.partition("*")[0] for each in formats() for pattern in each.homes[:1]]
    return f"no session logs in the home directory (looked in {', '.join(f'~/{h}' for h in homes)})"
