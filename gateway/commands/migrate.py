"""`gateway migrate`: bring the database up to this version, before a new gateway starts on it."""

from __future__ import annotations

import argparse
import asyncio
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
    migrate.set_defaults(run=lambda args: asyncio.run(_migrate(args)))


async def _migrate(args: argparse.Namespace) -> int:
    from gateway.stores.sqlite.opening import open_gateway_file

    storage = load_settings(args.config).storage
    if storage.in_memory:
        sys.stdout.write("storage.path is :memory:, there is nothing to migrate\n")
        return 0
    try:
        database = await open_gateway_file(storage)
    except StoreError as exc:
        raise ConfigError(f"storage.path: {exc}") from exc
    await database.close()
    sys.stdout.write(f"{storage.path} is up to date\n")
    return 0
