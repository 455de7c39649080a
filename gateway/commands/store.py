"""Opens the stores for one command. Works while a gateway is running on them."""

import getpass
import json
import os
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson

from gateway.backends import Stores, has_run, open_stores
from gateway.config import Settings, load_settings
from gateway.config.storage import StorageSettings, is_there
from gateway.errors import BadRequest, ConfigError, in_words
from gateway.process.running_gateways import is_alive, running_gateways, state_database
from gateway.stores.protocols import StoreError, StoreReplaced, StoreUnavailable
from gateway.stores.sql.audit_log import persons_name
from gateway.tasks import off_loop
from gateway.text.formatting import STATE_COLOURS
from gateway.text.page import rendered
from gateway.values import Fields, T
from gateway.wire.coerce import as_json_value

ADMIN_KEY = "GATEWAY_ADMIN_KEY"
_SUBJECTS = ("subject", "run_id", "pattern_id", "key_id")
_NO_FIELDS = {"act", "changes", "run", "config", "json", "yes", "lines", "named_tenant", *_SUBJECTS}

Command = Callable[[Stores, Settings, Namespace], Awaitable[int | None]]


def say(text: str) -> None:
    """Print one line."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def answer(args: Namespace, value: Any, text: str) -> None:
    """Print `value` as one line of JSON with `--json`, else `text`."""
    say(json.dumps(value) if args.json else text)


def as_line(value: Any) -> str:
    """A value with structs as one line of JSON without spaces."""
    return orjson.dumps(value, default=as_json_value).decode()


def print_lines(lines: Iterable[tuple[str, str]]) -> None:
    """Print lines. A terminal shows them in the colours of what is beside each: the name of a
    state, `-` for a caveat, `dim`, or anything else."""
    if not sys.stdout.isatty():
        say("\n".join([line for line, _ in lines]))
        return
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False)
    styles = {**STATE_COLOURS, "-": "yellow", "dim": "dim"}
    for line, kind in lines:
        console.print(Text(line, style=styles.get(kind, "")), soft_wrap=True)


def print_styled(package: str, template: str, values: Fields) -> None:
    """Print the text of a template, each line in the colours of its first word."""
    lines = rendered(package, template, values).splitlines()
    print_lines([(line, line.partition(" ")[0]) for line in lines])


def found_storage(storage: StorageSettings, subject: str | None = None) -> StorageSettings:
    """The database of the runs: as set, else this folder's, a running gateway's or `wrap`'s, first
    that of the run or conversation `subject`. A choice is said on stderr. Raises ConfigError:
    none."""
    default = StorageSettings().path
    if storage.shared or storage.path != default:
        return storage
    known = [(default, "")] * is_there(default) + _other_files()
    if subject is not None and len(known) > 1:
        known.sort(key=lambda each: not has_run(each[0], subject))
    for path, whose in known:
        if not whose:
            return storage
        sys.stderr.write(f"gateway: reading {path} of {whose}\n")
        return replace(storage, path=path)
    raise ConfigError(
        f"there is no database yet: no {default} in this folder, no gateway runs, and nothing was "
        "wrapped; `gateway wrap -- COMMAND` or `gateway serve` makes one, --config or "
        "GATEWAY_STORAGE__PATH name another one"
    )


def require_records(storage: StorageSettings) -> None:
    """Refuse to read a database that no other process can open, or that nobody has made yet.
    Raises: StoreUnavailable."""
    if storage.in_memory:
        raise StoreUnavailable(
            "storage.path is :memory:, only the running gateway's /api can read its data"
        )
    if not storage.shared and not is_there(storage.path):
        raise StoreUnavailable(f"storage.path: there is no database at {storage.path!r} yet")


def _other_files(but: str = "") -> list[tuple[str, str]]:
    """The databases of gateways that run, and of `wrap`, with their owners."""
    known = [(each.database, f"the gateway at {each.url}") for each in running_gateways()]
    known += [(str(state_database()), "gateway wrap")]
    other = str(Path(but).absolute())
    return [each for each in known if each[0] and is_there(each[0]) and each[0] != other]


@contextmanager
def reported(*kinds: type[Exception]) -> Iterator[None]:
    """Report errors of the stores, and of `kinds`, as the command's. Raises: ConfigError."""
    own: tuple[type[Exception], ...] = (StoreError, ValueError, OSError, *kinds)
    try:
        yield
    except BrokenPipeError:
        raise
    except own as exc:
        raise ConfigError(in_words(exc)) from exc


async def run_on_stores(
    command: Command, args: Namespace, creates: bool = False, whole: bool = False, own: bool = False
) -> int:
    """Run a command on the stores of its config; its exit status."""
    with reported(BadRequest):
        settings = load_settings(args.config, upstreams=creates or whole)
        subject = getattr(args, "run_id", None) or getattr(args, "subject", None)
        subject = subject and subject.partition("@")[0]  # an account of a day has its date, too
        if (budget := getattr(args, "budget", None) or "").startswith("wrap-"):
            subject = budget  # whose account is named like those of other wraps
        storage = settings.storage
        if not (creates or own):
            storage = found_storage(storage, subject)
        try:
            return await run_on(command, replace(settings, storage=storage), args, creates=creates)
        except ConfigError as exc:
            if creates or not subject or repr(subject)[:-1] not in str(exc):
                raise

            others = _other_files(storage.path)
            for path, whose in others:
                if has_run(path, subject):
                    sys.stderr.write(f"gateway: {exc}; it is in {path} of {whose}\n")
                    there = replace(settings, storage=StorageSettings(path=path))
                    return await run_on(command, there, args)
            places = ", ".join([storage.place, *dict(others)])
            raise ConfigError(f"{exc} (searched: {places})") from exc


async def run_on(
    command: Command, settings: Settings, args: Any, creates: bool = False, vectors: bool = False
) -> int:
    """Run a command on the stores of these settings, with the key and the entry in the audit log if
    it changes something; its exit status. `vectors`: patterns will be searched. Raises:
    ConfigError, StoreError."""
    storage = settings.storage
    existing = not (creates and storage.file)
    if existing:
        require_records(storage)
    stores = await open_stores(storage, vectors=vectors, existing=existing)
    try:
        # A server's database that is still empty has no key. Who may not change it does not migrate
        # it either.
        with suppress(*creates * [StoreReplaced]):
            await permit(stores, args)
        if storage.shared and creates:
            await stores.states.reopen()
        status = int(await command(stores, settings, args) or 0)
        await note_act(stores, args)
        return status
    finally:
        await stores.close()


def add_acts(kind: str, verb: ArgumentParser) -> None:
    """Declare a verb that changes something: it needs the admin key, takes an author and a reason,
    and the audit log keeps it under this kind. Without one the command writes its entry."""
    user = os.environ.get("USER") or os.environ.get("USERNAME", "")
    verb.add_argument("--author", default=user, help="your name (default: $USER)")
    verb.add_argument("--reason", default="", help="kept; of a stop: shown to the client")
    verb.set_defaults(act=(kind, verb.prog.split()[-1]), changes=True)


async def permit(stores: Stores, args: Namespace) -> None:
    """Before a change sign with the admin key of a gateway on the store, if any has one. Raises
    ConfigError: the key is not given, or is another. BadRequest: the author is no person's name."""
    if "act" in args:
        persons_name(args.author)
    if not getattr(args, "changes", False) or (controls := stores.controls) is None:
        return
    shown = await controls.shown_keys()
    if not (valid := [proof for pid, proof in shown if pid == 0 or is_alive(pid)]):
        return
    key = os.environ.get(ADMIN_KEY, "")
    if not key and sys.stdin.isatty():
        key = await off_loop(getpass.getpass, "admin key of the gateway: ")
    if await controls.use_key(key) not in valid:
        raise ConfigError(
            "this needs the admin key (auth.admin_key) of the gateway on this database, or the key "
            f"that `gateway wrap` has shown: in {ADMIN_KEY}, or typed at a terminal"
        )


async def confirmed(args: Namespace, what: str) -> None:
    """Ask at the terminal, unless `--yes` was given. Raises ConfigError: not agreed."""
    if args.yes:
        return
    if sys.stdin.isatty():
        sys.stderr.write(f"gateway: {what} Type yes to go on: ")
        sys.stderr.flush()
        typed = await off_loop(sys.stdin.readline)
        if typed.strip().lower() == "yes":
            return
    raise ConfigError(f"{what} Nothing is changed before it is confirmed: --yes, or at a terminal")


async def note_act(stores: Stores, args: Namespace) -> None:
    """Append what a command has changed to the audit log."""
    given = vars(args)
    kind, act = getattr(args, "act", ("", ""))
    if kind and stores.changes is not None:
        subject = next((given[n] for n in (*_SUBJECTS, "tenant") if given.get(n)), "")
        said = {name: value for name, value in given.items() if value and name not in _NO_FIELDS}
        await stores.changes.note(kind, act, subject, said=said)


def kept(value: T | None, otherwise: str) -> T:
    """A store, or a stored value, that is there. Raises ConfigError: the text `otherwise`."""
    if value is None:
        raise ConfigError(otherwise)
    return value


async def connect(settings: Settings) -> None:
    """Open the database as a gateway would, and close it. Raises: ConfigError."""
    try:
        # Opening the stores migrates them.
        stores = await open_stores(settings.storage, vectors=settings.etraces.enabled)
    except StoreError as exc:
        raise ConfigError(f"storage: {exc}") from exc
    await stores.close()
