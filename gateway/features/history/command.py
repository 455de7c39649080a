"""`gateway history`: the sessions that agents keep on this machine, read where they are, and with
`--keep` as past runs in the store of the settings."""

import argparse
import asyncio
import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from gateway.commands.declared import declare
from gateway.commands.store import as_line, found_storage, reported, say
from gateway.config import Settings, load_settings
from gateway.errors import ConfigError
from gateway.features.history.find import Found, at_home, named
from gateway.process.running_gateways import state_database
from gateway.text.sanitize import visible

if TYPE_CHECKING:
    from rich.console import Console

    from gateway.features.history.reading import SessionReading

_NEXT = "Next: `gateway wrap --mode shadow -- COMMAND` watches a session, and steers nothing."


def add_parser(commands: Any) -> None:
    """Declare the command."""
    declare(commands, __name__, {"history": _history})


def _history(args: argparse.Namespace) -> int:
    from gateway.core.decision_settings import Policy
    from gateway.features.history.projects import repository_of, with_projects
    from gateway.features.history.reading import SessionFilter, read_all, since
    from gateway.features.history.sub_agent_orders import with_orders

    if args.paths[-2:-1] == ["show"]:
        return _show(args)
    if args.steps:
        raise ConfigError("--steps: only with `show ID`")
    verb = next((verb for verb in ("typed", "brief") if verb in args.paths), "")
    if verb:
        args.paths.remove(verb)
    reads = args.read or args.write
    if reads and verb != "brief":
        raise ConfigError("--read and --write: only with `brief`")
    if args.html:
        from gateway.features.history.page import check_file, write_page

        check_file(args.html, overwrite=args.force)
    elif args.with_words or args.force:
        raise ConfigError("--with-words and --force: only with --html FILE")
    if args.json and (args.keep or args.html):
        raise ConfigError("--html and --keep: not with --json, which writes nothing but its lines")
    begin = None
    if args.since:
        begin = since(args.since, datetime.now(UTC))
    wanted = SessionFilter(since=begin, project=args.project, agent=args.agent)
    found = _found(args)
    readings: list[SessionReading] = []
    problems = 0
    for each in read_all(found, Policy(), err=sys.stderr, jobs=args.jobs):
        if each.problem:
            problems += 1
            sys.stderr.write(f"gateway: {visible(each.problem)}\n")
        readings += each.sessions
    readings = list(filter(wanted.takes, with_projects(with_orders(readings))))
    silent = [each.path for each in readings if each.silent and not each.parent]
    readings = [each for each in readings if not each.silent]
    if args.json and not verb:
        from gateway.features.history.show import session_line
        from gateway.features.history.summary import without_copies

        for reading in without_copies(readings):
            sys.stdout.write(session_line(reading))
        return int(problems > 0)
    if not readings:
        raise ConfigError(_nothing(args, len(found), read=len(found) - problems))
    if verb == "brief":
        root = repository_of(str(Path.cwd()))
        places = {each.place for each in readings if repository_of(each.project) == root}
        readings = [each for each in readings if each.place in places]
        if not readings:
            raise ConfigError(f"brief: no sessions of this project, {Path.cwd()}")
    from gateway.features.history.screen import print_screen, print_typed
    from gateway.features.history.summary import summarise
    from gateway.features.history.typed import typed_by_project, typed_view

    console = _console()
    command = shlex.join(["gateway", "history", *args.paths])
    typed = typed_by_project(readings)
    if verb:
        if not typed:
            raise ConfigError(f"{verb}: nothing was typed in several sessions of one project")
        if reads:
            from gateway.features.history.instruction_file import read_brief

            settings = load_settings(args.config)
            with reported():
                settings = _with_database(settings)
                asyncio.run(read_brief(typed, Path.cwd(), settings, write=args.write))
        elif verb == "brief":
            from gateway.features.history.instruction_file import brief

            sys.stdout.write(brief(typed, Path.cwd()))
        elif args.json:
            for project, entries in typed.items():
                for entry in entries:
                    say(as_line(typed_view(project, entry)))
        else:
            print_typed(typed, console, command)
        return 0
    print_screen(
        summarise(readings), console, typed, command=command, every=args.all, silent=silent
    )
    if args.html:
        write_page(args.html, readings, words=args.with_words)
        console.print(f"page: {args.html}", markup=False, soft_wrap=True)
    if args.keep:
        logs = [each for each in found if each.format is not None]
        settings = load_settings(args.config)
        return run_keep(logs, settings, sys.stdout, err=sys.stderr, readings=readings)
    if not args.paths:
        console.print(_NEXT, style="dim", markup=False)
    return int(problems > 0)


def _console() -> "Console":
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else 120, highlight=False)


def _show(args: argparse.Namespace) -> int:
    from gateway.core.decision_settings import Policy
    from gateway.features.history.show import show

    if args.json or args.keep or args.html:
        raise ConfigError("show: prints one session, without --json, --keep and --html")
    *args.paths, _, name = args.paths
    show(_found(args), name, args.steps, policy=Policy(), console=_console())
    return 0


def _found(args: argparse.Namespace) -> list[Found]:
    if args.paths:
        return named(Path(path) for path in args.paths)
    return at_home(Path.home())


def _nothing(args: argparse.Namespace, files: int, *, read: int) -> str:
    """Why there is no session, where so many of the files could be read."""
    given = [f"--{name}" for name in ("since", "project", "agent") if getattr(args, name)]
    if read:
        return (
            f"no session fits {' and '.join(given)}" if given else "no log has an answer of a model"
        )
    if files:
        return "no session could be read"
    from gateway.features.history.log_places import formats

    homes = [f"~/{home}" for each in formats() for home in each.homes]
    return f"no session logs in the home directory (looked for {', '.join(homes)})"


def run_keep(
    found: Sequence[Found],
    settings: Settings,
    out: TextIO,
    err: TextIO,
    readings: Sequence["SessionReading"] = (),
) -> int:
    """Keep the sessions of these files, and learn from them; `readings`: as for `Keeper`, of those
    that are asked for, none for all. Returns the exit status. The database is the one that other
    commands read; if there is none, that of `gateway wrap` is made. Raises ConfigError: the store
    cannot be opened or written."""
    from gateway.features.history.import_as_runs import keep_all

    with reported():
        database = _with_database(settings)
        return asyncio.run(keep_all(found, database, out, err=err, readings=readings))


def _with_database(settings: Settings) -> Settings:
    try:
        return replace(settings, storage=found_storage(settings.storage))
    except ConfigError:
        path = state_database()
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    return replace(settings, storage=replace(settings.storage, path=str(path)))
