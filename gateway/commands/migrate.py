"""`gateway migrate`: update the database to this version, or copy it to another place."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from gateway.backends import copy_to_postgres, open_stores
from gateway.config import Secret, Settings, load_settings
from gateway.config.storage import StorageSettings
from gateway.errors import ConfigError
from gateway.stores.protocols import StoreError
from gateway.text.formatting import progress_bar


def add_parser(commands: Any) -> None:
    """Declare the command."""
    migrate = commands.add_parser("migrate", help="create or migrate the database, then stop")
    migrate.add_argument("--config", type=Path, help="config file (default: ./config.yaml)")
    migrate.add_argument("--json", action="store_true", help="one JSON object on stdout")
    migrate.add_argument(
        "--to", metavar="URL", help="copy the SQLite file at storage.path to a PostgreSQL database"
    )
    migrate.set_defaults(run=lambda args: asyncio.run(_run(args)))


async def connect(settings: Settings) -> None:
    """Open the database as a gateway would, and close it. Raises: ConfigError."""
    try:
        # Opening the stores migrates them.
        stores = await open_stores(settings.storage, vectors=settings.etraces.enabled)
    except StoreError as exc:
        raise ConfigError(f"storage: {exc}") from exc
    await stores.close()


async def _run(args: argparse.Namespace) -> int:
    settings = load_settings(args.config)
    storage = settings.storage
    if args.to is not None:
        return await _copy(settings, args)
    result = "storage.path is :memory:, there is nothing to migrate"
    if not storage.in_memory:
        await connect(settings)
        result = f"{storage.place} is up to date"
    report = json.dumps({"path": storage.place, "ok": True}) if args.json else result
    sys.stdout.write(report + "\n")
    return 0


def _require_file(source: StorageSettings) -> None:
    if not source.in_memory and not Path(source.path).exists():
        raise ConfigError(f"--to copies the file at storage.path: there is none at {source.path!r}")


async def _copy(settings: Settings, args: argparse.Namespace) -> int:
    """Copy all rows; the file stays as it is."""
    storage = settings.storage
    source = replace(storage, url=None, listen_url=None)
    try:
        target = replace(storage, url=Secret(args.to), listen_url=None)
    except ValueError as exc:
        raise ConfigError(f"--to: {str(exc).removeprefix('url: ')}") from exc
    _require_file(source)
    with progress_bar(sys.stderr) as bar:
        task = bar.add_task("rows", total=None)

        def progress(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)

        try:
            vectors = settings.etraces.enabled
            copied = await copy_to_postgres(source, target, progress, vectors=vectors)
        except StoreError as exc:
            raise ConfigError(f"storage: {exc}") from exc
    rows = sum(copied.values())
    if args.json:
        report = json.dumps({"path": target.place, "ok": True, "rows": dict(copied)})
    else:
        report = f"{rows} rows of {source.path} are in {target.place} now; set storage.url to it"
    sys.stdout.write(report + "\n")
    return 0
