"""Settings of earlier versions, each with its replacement.

They prevent no start, except those that have another name now, and those that ended or stopped
runs: a limit must not vanish without notice."""

from typing import Any

from gateway.config.values import ENV_PREFIX, ENV_SEPARATOR
from gateway.data_files import read_toml
from gateway.values import FieldDict, Fields, Texts
from gateway.wire.coerce import mapping_at

_TABLES = read_toml(__package__, "removed.toml")
_LIMITS: Texts = _TABLES["limits"]
_GONE: Texts = _TABLES["gone"] | _LIMITS
# Values of `_LIMITS` that let every run go on; YAML reads `off` as false.
_NO_LIMIT = (None, False, "off", "hand_over")


def removed_keys(raw: Fields, env: Texts) -> dict[str, str]:
    """Returns the settings of earlier versions that a config or the environment still contains:
    each name as written there, with one line on what replaces it."""
    found: dict[str, str] = {}
    for old, why in _GONE.items():
        found |= dict.fromkeys(_written(old, raw, env), f"has no effect: {why}")
    return found


def _place(name: str, raw: Fields) -> tuple[Any, str]:
    """The mapping in which a setting stands, empty where it does not, and the last of its keys."""
    *sections, key = name.split(".")
    values: Any = raw
    for section in sections:
        values = mapping_at(values, section)
    return values, key


def _written(old: str, raw: Fields, env: Texts) -> FieldDict:
    """The values that a config and the environment give to a setting, by its name there."""
    variable = f"{ENV_PREFIX}{old.replace('.', ENV_SEPARATOR)}".upper()
    values, key = _place(old, raw)
    if key in values:
        written = {old: values[key]}
    else:
        written = {}
    return written | ({variable: env[variable]} if variable in env else {})


def drop_removed(merged: FieldDict) -> list[str]:
    """Take the settings of earlier versions out of these values. Returns why a start is refused:
    one line for each that has another name, or was a limit."""
    refused = []
    for old in _GONE:
        values, key = _place(old, merged)
        if key not in values:
            continue
        value = values.pop(key)
        if old in _LIMITS and value not in _NO_LIMIT:
            refused.append(f"{old}: is gone: {_LIMITS[old]}, and remove this key")
    return refused
