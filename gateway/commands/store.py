"""The gateway's stores, opened for one command; beside a running gateway too."""

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
from gateway.stores.base import StoreError

Command = Callable[[Stores, Settings, argparse.Namespace], Awaitable[int | None]]


def add_verb(
    verbs: Any, name: str, summary: str, command: Command, *, existing: bool = False
) -> argparse.ArgumentParser:
    """Declare a command that works on the stores; it takes `--config` and `--json`.

    existing: it reads what a gateway has recorded, and makes no database where there is none.
    """
    parser: argparse.ArgumentParser = verbs.add_parser(name, help=summary)
    parser.add_argument("--config", type=Path, help="config file (default: ./config.yaml)")
    parser.add_argument("--json", action="store_true", help="JSON on stdout")
    parser.set_defaults(run=lambda args: asyncio.run(_run(command, args, existing)))
    return parser


def say(text: str) -> None:
    """One line of output."""
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
    if existing:
        _require_database(settings)
    stores = await open_stores(settings.storage)
    try:
        yield stores, settings
    finally:
        await stores.close()


def _require_database(settings: Settings) -> None:
    storage = settings.storage
    if storage.in_memory:
        raise ConfigError(
            "storage.path is :memory:, only the running gateway's /api knows its runs"
        )
    if not Path(storage.path).exists():
        raise ConfigError(f"storage.path: there is no database at {storage.path!r} yet")
