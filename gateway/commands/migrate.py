"""`gateway migrate`: update the database to this version before a new gateway starts on it."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from gateway.backends import open_stores
from gateway.config import load_settings
from gateway.errors import ConfigError
from gateway.stores.protocols import StoreError


def add_parser(commands: Any) -> None:
    """Declare the command."""
    migrate = commands.add_parser("migrate", help="create or migrate the database, then stop")
    migrate.add_argument("--config", type=Path, help="config file (default: ./config.yaml)")
    migrate.add_argument("--json", action="store_true", help="one JSON object on stdout")
    migrate.set_defaults(run=lambda args: asyncio.run(_migrate(args)))


async def _migrate(args: argparse.Namespace) -> int:
    storage = load_settings(args.config).storage
    result = "storage.path is :memory:, there is nothing to migrate"
    if not storage.in_memory:
        try:
            # Opening the stores migrates them.
            stores = await open_stores(storage)
        except StoreError as exc:
            raise ConfigError(f"storage: {exc}") from exc
        await stores.close()
        result = f"{storage.place} is up to date"
    report = json.dumps({"path": storage.place, "ok": True}) if args.json else result
    sys.stdout.write(report + "\n")
    return 0
