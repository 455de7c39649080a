"""Opens the stores for one command. Works while a gateway is running on them."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from gateway.backends import Stores, open_stores
from gateway.config import Settings, load_settings
from gateway.errors import ConfigError
from gateway.stores.protocols import StoreError

Command = Callable[[Stores, Settings, argparse.Namespace], Awaitable[int | None]]


def add_verb(
    verbs: Any, name: str, summary: str, command: Command, *, existing: bool = False
) -> argparse.ArgumentParser:
    """Declare a command that works on the stores; it takes `--config` and `--json`.

    `existing`: the command only reads what a gateway has recorded, and creates no database.
    """
    parser: argparse.ArgumentParser = verbs.add_parser(name, help=summary)
    parser.add_argument("--config", type=Path, help="config file (default: ./config.yaml)")
    parser.add_argument("--json", action="store_true", help="JSON on stdout")
    parser.set_defaults(run=lambda args: asyncio.run(_run(command, args, existing)))
    return parser


def say(text: str) -> None:
    """Print one line."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


async def _run(command: Command, args: argparse.Namespace, existing: bool) -> int:
    try:
        async with _opened(args, existing) as (stores, settings):
            return int(await command(stores, settings, args) or 0)
    except BrokenPipeError:
        raise
    except (StoreError, ValueError, OSError) as exc:
        raise ConfigError(str(exc)) from exc


@asynccontextmanager
async def _opened(
    args: argparse.Namespace, existing: bool
) -> AsyncIterator[tuple[Stores, Settings]]:
    settings = load_settings(args.config)
    stores = await open_stores(settings.storage, existing=existing)
    try:
        yield stores, settings
    finally:
        await stores.close()
