"""`gateway audit` and `migrate`: commands of operators. They work while a
gateway runs on the same store: its next call follows the change."""

import argparse
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from gateway.backends import Stores, copy_to_server
from gateway.commands.declared import declare
from gateway.commands.store import (
    answer,
    connect,
    reported,
    say,
)
from gateway.config import Secret, Settings, load_settings
from gateway.config.storage import StorageSettings
from gateway.errors import BadRequest, ConfigError
from gateway.stores.protocols import StoreError
from gateway.text import formatting
from gateway.text.formatting import progress_bar
from gateway.text.sanitize import one_line


def add_parser(commands: Any) -> None:
    """Declare the commands."""
    declare(commands, __name__, {"audit": _audit, "migrate": _migrate})


async def _audit(stores: Stores, _settings: Settings, args: argparse.Namespace) -> None:
    from gateway.api.audit import AuditParameters, act_lines, acts_of
    from gateway.api.params import read_parameters

    given = ((name, getattr(args, name, None)) for name in AuditParameters.model_fields)
    chosen = {name: value for name, value in given if value}
    with reported(BadRequest):
        values = dict(read_parameters(AuditParameters, urlencode(chosen).encode()))
    if args.csv or args.json:
        async for lines in act_lines(stores.changes, values, "csv" if args.csv else "jsonl"):
            sys.stdout.write(lines.decode())
        return
    for act in (await acts_of(stores.changes, values))[0]:
        words = (act[name] for name in ("kind", "act", "subject", "author", "reason"))
        say(f"{formatting.clock(act['at'])}  {one_line('  '.join(filter(None, words)), 160)}")


async def _migrate(args: argparse.Namespace) -> int:
    settings = load_settings(args.config)
    if args.to is not None:
        return await _copy_database(settings, args)
    storage = settings.storage
    result = "storage.path is :memory:, there is nothing to migrate"
    if not storage.in_memory:
        await connect(settings)
        result = f"{storage.place} is up to date"
    answer(args, {"path": storage.place, "ok": True}, result)
    return 0


def _endpoints(storage: StorageSettings, to: str) -> tuple[StorageSettings, StorageSettings]:
    """The file that is copied, and the database it is copied to. Raises: ConfigError."""
    try:
        target = replace(storage, url=Secret(to), listen_url=None)
    except ValueError as exc:
        raise ConfigError(f"--to: {str(exc).removeprefix('url: ')}") from exc
    source = replace(storage, url=None, listen_url=None)
    if not source.in_memory and not Path(source.path).exists():
        raise ConfigError(f"--to copies the file at storage.path: there is none at {source.path!r}")
    return source, target


async def _copy_database(settings: Settings, args: argparse.Namespace) -> int:
    """Copy all rows; the file stays as it is."""
    source, target = _endpoints(settings.storage, args.to)
    with progress_bar(sys.stderr) as bar:
        task = bar.add_task("rows", total=None)
        try:
            copied = await copy_to_server(
                source,
                target,
                lambda done, total: bar.update(task, completed=done, total=total),
                vectors=settings.etraces.enabled,
            )
        except StoreError as exc:
            raise ConfigError(f"storage: {exc}") from exc
    moved = f"{sum(copied.values())} rows of {source.path} are in {target.place} now"
    shown = {"path": target.place, "ok": True, "rows": dict(copied)}
    answer(args, shown, f"{moved}; set storage.url to it")
    return 0
