"""Settings from variables: `GATEWAY_SERVER__PORT=9000` sets `server.port`."""

from __future__ import annotations

import dataclasses
import re
import types
import typing
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from gateway.config.settings import Settings
from gateway.config.values import Faults, key_path
from gateway.errors import ConfigError

ENV_PREFIX = "GATEWAY_"
ENV_SEPARATOR = "__"
SET_BY = " (set by "
"""Ends the fault of a value that a variable set; its name and a bracket follow."""

# Maps whose keys are states, written in capitals; all other keys are lower case.
_BY_STATE = (("model_routing",), ("injection", "cooldown_steps"))
_TOP_LEVEL_VALUES = frozenset(
    f.name
    for f in dataclasses.fields(Settings)
    if f.default_factory is dict or f.default == () or f.name == "preset"
)


def overlay(merged: dict[str, Any], env: Mapping[str, str]) -> None:
    """Put the settings of `env` into `merged`; lists and maps are written as YAML or JSON.

    Raises:
        ConfigError: the text of a list or map is not YAML; that variable is left out.
    """
    faults = Faults()
    for name, keys in _key_paths(env):
        text: Any = env[name]
        if _is_collection(_hint(keys)):
            with faults.collected():
                _put(merged, keys, _yaml(text, keys))
        else:
            _put(merged, keys, text)
    faults.raise_any()


def _put(merged: dict[str, Any], keys: list[str], value: Any) -> None:
    node = merged
    for key in keys[:-1]:
        child = node.get(key)
        node[key] = node = dict(child) if isinstance(child, dict) else {}
    node[keys[-1]] = value


def naming_the_variable(fault: str, env: Mapping[str, str]) -> str:
    """`fault`, with the name of the variable that set the refused value, if one did."""
    path = key_path(fault)
    for name, keys in _key_paths(env):
        if path in (keys[0], ".".join(keys)):
            return f"{fault}{SET_BY}{name})"
    return fault


def misspelt_variables(env: Mapping[str, str]) -> list[tuple[str, str]]:
    """(variable, the right name) of each that would set a key if its underscores were right.

    Two stand between the keys and one within them: `GATEWAY_SERVER_PORT` sets nothing. Addresses
    that Kubernetes puts into variables of such names (`tcp://...`) are not meant as settings.
    """
    right = {_single(name): name for name in _variables(Settings, ENV_PREFIX)}
    found = []
    for name, text in env.items():
        meant = right.get(_single(name), name)
        if meant != name and meant not in env and not text.startswith("tcp://"):
            found.append((name, meant))
    return found


def _single(name: str) -> str:
    return re.sub("_+", "_", name.upper())


def _variables(section: type, prefix: str) -> Iterator[str]:
    hints = typing.get_type_hints(section)
    for field in dataclasses.fields(section):
        name = prefix + field.name.upper()
        if dataclasses.is_dataclass(hints[field.name]):
            yield from _variables(typing.cast(type, hints[field.name]), name + ENV_SEPARATOR)
        elif field.init:
            yield name


def _key_paths(env: Mapping[str, str]) -> Iterator[tuple[str, list[str]]]:
    """(variable, keys) of each variable that is a setting.

    A name of one part is a setting only if it is the preset, or a list or map at the top of the
    tree.
    """
    for name in env:
        keys = name.removeprefix(ENV_PREFIX).lower().split(ENV_SEPARATOR)
        if not name.startswith(ENV_PREFIX) or (len(keys) == 1 and keys[0] not in _TOP_LEVEL_VALUES):
            continue
        if tuple(keys[:-1]) in _BY_STATE:
            keys[-1] = keys[-1].upper()
        yield name, keys


def _hint(keys: list[str]) -> Any:
    """The type of the setting with these keys, None for an unknown one."""
    hint: Any = Settings
    for key in keys:
        if dataclasses.is_dataclass(hint):
            hint = typing.get_type_hints(hint).get(key)
        else:
            hint = (*typing.get_args(hint), None, None)[1]
    return hint


def _is_collection(hint: Any) -> bool:
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        return any(map(_is_collection, typing.get_args(hint)))
    return typing.get_origin(hint) in (tuple, list, dict, Mapping)


def _yaml(text: str, keys: list[str]) -> Any:
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as exc:
        problem = exc.problem if isinstance(exc, yaml.MarkedYAMLError) else exc
        raise ConfigError(f"{'.'.join(keys)}: neither YAML nor JSON: {problem}") from exc
