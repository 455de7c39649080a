"""`gateway prices`: the list of prices in use, and a newer one in its place."""

from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec import json

from gateway.commands.declared import declare
from gateway.commands.store import answer, confirmed, kept
from gateway.config import Settings
from gateway.errors import ConfigError
from gateway.features.prices.price_list import list_of
from gateway.text.formatting import iso
from gateway.text.page import rendered
from gateway.values import Fields
from gateway.wire.coerce import as_number


def add_prices(commands: Any) -> None:
    """Declare the command and its verb."""
    declare(commands, __name__, {"prices": _show, "prices update": _update})


async def _show(_: object, settings: Settings, args: Namespace) -> None:
    listed = kept(list_of(settings.storage.prices_file), "LiteLLM is not installed: no list")
    shown = {"models": listed.count(), **listed.about}
    answer(args, shown, "{models:,} models, prices of {date}, from {source}".format(**shown))


async def _update(_: object, settings: Settings, args: Namespace) -> None:
    place = kept(settings.storage.prices_file or None, "no file is kept: set storage.spool_path")
    about, text = _read(Path(args.file))
    models = _models(text, args.file)
    values = {"about": about, "models": models, "listed": list_of(place)}
    answer(args, about, rendered(__package__, "prices.txt", values).rstrip())
    await confirmed(args, f"The list will be kept in {place}.")
    _keep(place, json.encode(about) + b"\n" + text)


def _read(file: Path) -> tuple[Fields, bytes]:
    about = {"date": iso(file.stat().st_mtime)[:10], "source": str(file.absolute())}
    return about, file.read_bytes()


def _keep(place: str, content: bytes) -> None:
    part = Path(f"{place}-part")
    part.parent.mkdir(parents=True, exist_ok=True)
    part.touch(mode=0o600)
    part.write_bytes(content)
    part.replace(place)


def _models(text: bytes, file: str) -> Mapping[str, Fields]:
    """The models of a list. Raises ConfigError: it has none, or a price that is no number, or is
    negative."""
    try:
        models = json.decode(text, type=dict[str, dict[str, Any]])
    except (ValueError, RecursionError) as exc:
        raise ConfigError(f"{file}: no list of models in LiteLLM's form: {exc}") from exc
    if not any({"litellm_provider", "mode"} & entry.keys() for entry in models.values()):
        raise ConfigError(f"{file}: no model is in it")
    for name, entry in models.items():
        for key, price in entry.items():
            if "cost" in key and not isinstance(price, dict) and as_number(price, -1.0) < 0:
                raise ConfigError(f"{name}: {key}: {price!r} is no number of 0 or more")
    return models
