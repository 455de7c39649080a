"""`gateway migrate`: bring the database up to this version, before a new gateway starts on it."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from gateway.config import load_settings
from gateway.errors import ConfigError
from gateway.stores.base import StoreError


def add_parser(commands: Any) -> None:
    """Declare the command."""
    migrate = commands.add_parser("migrate", help="make or migrate the database, then stop")
    migrate.add_argument("--config", type=Path, help="config file (default: ./config.yaml)")
    migrate.add_argument("--json", action="store_true", help="one JSON object on stdout")
    migrate.set_defaults(run=lambda args: asyncio.run(_migrate(args)))


async def _migrate(args: argparse.Namespace) -> int:
    from gateway.stores.sqlite.opening import open_gateway_file

    storage = load_settings(args.config).storage
    said = "storage.path is :memory:, there is nothing to migrate"
    if not storage.in_memory:
        try:
            database = await open_gateway_file(storage)
        except StoreError as exc:
            raise ConfigError(f"storage.path: {exc}") from exc
        await database.close()
        said = f"{storage.path} is up to date"
    sys.stdout.write((json.dumps({"path": storage.path, "ok": True}) if args.json else said) + "\n")
    return 0
