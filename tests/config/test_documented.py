"""The config file in the repository names every key, explains it, and changes nothing."""

from __future__ import annotations

import dataclasses
import re
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from gateway.config import Deployment, Settings, load_settings

FILE = Path(__file__).parents[2] / "config.yaml"


def keys_of(section: type, path: str = "") -> Iterator[str]:
    """Dotted paths of all keys of a settings dataclass, sections included."""
    hints = typing.get_type_hints(section)
    for field in dataclasses.fields(section):
        if field.init:
            here = f"{path}.{field.name}" if path else field.name
            yield here
            if dataclasses.is_dataclass(hints[field.name]):
                yield from keys_of(typing.cast(type, hints[field.name]), here)


def written(values: Any, path: str = "") -> Iterator[str]:
    """Dotted paths of the keys of a parsed file, as deep as the settings have sections."""
    known = set(keys_of(Settings))
    for key, value in values.items():
        here = f"{path}.{key}" if path else key
        yield here
        if isinstance(value, dict) and any(name.startswith(f"{here}.") for name in known):
            yield from written(value, here)


def explained(text: str) -> set[str]:
    """Dotted paths of the keys with a comment behind them or right above them."""
    found, parents, above = set(), {0: ""}, False
    for line in text.splitlines():
        match = re.match(r"( *)([\w\"]+):(.*)", line)
        if match:
            depth, name, rest = len(match[1]), match[2], match[3]
            path = f"{parents[depth]}.{name}".strip(".")
            parents[depth + 2] = path
            if above or " #" in rest:
                found.add(path)
        above = line.lstrip().startswith("#")
    return found


def test_it_loads_and_says_what_holds_without_it() -> None:
    """Every value in the file is the default: with and without it the settings are equal."""
    assert load_settings(FILE, {}) == Settings()


def test_every_key_is_in_the_file() -> None:
    """A key of the settings that the file lacks is named here."""
    missing = set(keys_of(Settings)) - set(written(yaml.safe_load(FILE.read_text())))
    assert not missing, f"not in config.yaml: {sorted(missing)}"


def test_every_key_is_explained() -> None:
    """Each key has a comment behind it, or above it where it opens a section."""
    text = FILE.read_text()
    leaves = {key for key in keys_of(Settings) if not _is_section(key)}
    silent = leaves - explained(text)
    assert not silent, f"without a comment in config.yaml: {sorted(silent)}"


def _is_section(key: str) -> bool:
    return any(other.startswith(f"{key}.") for other in keys_of(Settings))


def test_every_key_of_a_deployment_is_shown() -> None:
    """The example above `model_list` has all keys that an entry may have."""
    example = FILE.read_text().split("\nmodel_list:")[0].rpartition("\n\n")[2]
    missing = [key for key in keys_of(Deployment) if not re.search(rf"#[ -]+{key}:", example)]
    assert not missing, f"not shown for model_list: {missing}"


def test_units_are_in_words() -> None:
    """A key with a unit in its name has it in words, in its comment or its section's."""
    units = {"_s": "second", "_ms": "millisecond", "_mb": "MiB", "_days": "day", "_chars": "char"}
    for section in re.split(r"\n\n", FILE.read_text()):
        for line in section.splitlines():
            key = line.strip().partition(":")[0]
            for suffix, word in units.items():
                if key.endswith(suffix) and not line.startswith("#"):
                    assert word in line or word in section.split(":")[0], line
