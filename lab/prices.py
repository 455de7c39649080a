"""Prices of models that a config file of the laboratory gives, besides the settings in it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gateway.config import read_file
from gateway.config.keys_and_types import build
from gateway.errors import ConfigError
from gateway.values import frozen

USD_DIGITS = 6


@frozen
class Price:
    """US dollars for a million tokens."""

    input: float  # cached or not
    output: float  # with those of reasoning


def read_prices(path: Path | None) -> dict[str, Price]:
    """The `prices` of a config file, by model. Raises ConfigError: a price is none."""
    return prices_of(read_file(path)) if path else {}


def prices_of(raw: Mapping[str, Any]) -> dict[str, Price]:
    """The `prices` among the values of a config. Raises: ConfigError."""
    given = raw.get("prices") or {}
    if not isinstance(given, Mapping):
        raise ConfigError("prices: expected a mapping of model names")
    return {name: build(Price, price, f"prices.{name}") for name, price in given.items()}


def add_dollars(tokens: dict[str, dict[str, float]], prices: Mapping[str, Price]) -> None:
    """Put what each model's tokens cost beside them, where its price is given."""
    for model, row in tokens.items():
        if price := prices.get(model):
            paid = row["input"] * price.input + row["output"] * price.output
            row["usd"] = round(paid / 1e6, USD_DIGITS)
