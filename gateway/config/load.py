"""Reading settings: defaults < preset < config file < environment.

A variable names the keys: `GATEWAY_SERVER__PORT=9000` sets `server.port`.
"""

from __future__ import annotations

import copy
import dataclasses
import os
import re
import types
import typing
from collections.abc import Iterator, Mapping, Set
from pathlib import Path
from typing import Any

import yaml

from gateway.config.schema import build, join
from gateway.config.settings import PRESETS, Settings, fill
from gateway.config.values import SET_BY, Faults, Secret, key_path
from gateway.config.yaml_file import environment_variables, misplaced, read_config_file, translate
from gateway.errors import ConfigError

ENV_PREFIX = "GATEWAY_"
ENV_SEPARATOR = "__"

# Maps whose keys are states, written in capitals; all other keys are lower case.
_BY_STATE = (("model_routing",), ("injection", "cooldown_steps"))
_TOP_LEVEL_VALUES = frozenset(
    f.name
    for f in dataclasses.fields(Settings)
    if f.default_factory is dict or f.default == () or f.name == "preset"
)


def overlay(merged: dict[str, Any], env: Mapping[str, str]) -> None:
    """Put the settings of `env` into `merged`; lists and maps are written as YAML or JSON. Raises
    ConfigError: the text of a list or map is not YAML; that variable is left out."""
    faults = Faults()
    for name, keys in _key_paths(env):
        value: Any = env[name]
        if _is_collection(_hint(keys)):
            try:
                value = yaml.safe_load(value)
            except yaml.YAMLError as exc:
                problem = exc.problem if isinstance(exc, yaml.MarkedYAMLError) else exc
                faults.found.append(f"{'.'.join(keys)}: neither YAML nor JSON: {problem}")
                continue
        node = merged
        for key in keys[:-1]:
            child = node.get(key)
            node[key] = node = dict(child) if isinstance(child, dict) else {}
        node[keys[-1]] = value
    faults.raise_any()


def naming_the_variable(fault: str, env: Mapping[str, str]) -> str:
    """`fault`, with the name of the variable that set the refused value, if one did."""
    path = key_path(fault)
    for name, keys in _key_paths(env):
        if path in (keys[0], ".".join(keys)):
            return f"{fault}{SET_BY}{name})"
    return fault


def misspelt_variables(env: Mapping[str, str]) -> list[tuple[str, str]]:
    """(variable, the right name) of each that would set a key if its underscores were right.

    Two are between the keys and one within them: `GATEWAY_SERVER_PORT` sets nothing. Addresses
    that Kubernetes puts into variables of such names (`tcp://...`) are not meant as settings.
    """
    right = {_single(name): name for name in _variables(Settings, ENV_PREFIX)}
    meant = {name: right.get(_single(name), name) for name in env}
    return [
        (name, each)
        for name, each in meant.items()
        if each != name and each not in env and not env[name].startswith("tcp://")
    ]


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
    """(variable, keys) of each variable that is a setting; one of a single key is one only for the
    preset, or a list or map at the top of the tree."""
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


DEFAULT_FILE = "config.yaml"

_BRACED = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")
_LITELLM_REF = "os.environ/"
_SECRET_KEYS = re.compile(
    r"(^|_)((api_?|admin_|master_|gateway_)keys?|secret|token|password|credentials)(_|$)|access_key"
)


_UPSTREAM_KEYS = frozenset(
    {"model_list", "default_upstream", "router", "auth", "embedding", "alerts"}
    | {"litellm_settings", "router_settings", "general_settings"}
)
"""Sections that commands which only read the store leave out: they may name missing keys."""


def load_settings(
    path: str | os.PathLike[str] | None = None,
    env: Mapping[str, str] | None = None,
    *,
    upstreams: bool = True,
) -> Settings:
    """Settings from `path` (or `./config.yaml` when there is one) and the environment.

    upstreams: False leaves out the providers and their keys, which then need not be set. Raises
    ConfigError: the file is missing or is not YAML, or has wrong keys or values: all of them, each
    with its line.
    """
    env = dict(os.environ if env is None else env)
    default = DEFAULT_FILE if Path(DEFAULT_FILE).exists() else None
    chosen = path or env.get("GATEWAY_CONFIG") or default
    file = read_config_file(chosen) if chosen else None
    raw = file.values if file else {}
    if not upstreams:
        raw, env = left_out(_UPSTREAM_KEYS, raw, env)
        env.pop("OPENAI_BASE_URL", None)
    faults = list(file.repeated) if file else []
    try:
        settings = settings_from_dict(raw, env)
    except ConfigError as exc:
        faults += file.located(exc.faults) if file else exc.faults
    if faults:
        raise ConfigError(*faults)
    return settings


def left_out(
    sections: Set[str], raw: Mapping[str, Any], env: Mapping[str, str]
) -> tuple[dict[str, Any], dict[str, str]]:
    """The values of a file, and the variables, without some sections."""
    prefixes = tuple(f"{ENV_PREFIX}{key.upper()}" for key in sections)
    kept = {key: value for key, value in raw.items() if key not in sections}
    return kept, {name: text for name, text in env.items() if not name.startswith(prefixes)}


def settings_from_dict(raw: Mapping[str, Any], env: Mapping[str, str] | None = None) -> Settings:
    """Settings from plain values; references are resolved, `GATEWAY_*` variables win.

    Raises ConfigError: keys are unknown or values refused: all of them, each with its key path and
    the variable that set it.
    """
    faults = Faults()
    faults.found += misplaced(raw)
    merged = translate(copy.deepcopy(dict(raw)))
    env = {**environment_variables(raw), **(env or {})}
    if base := env.get("OPENAI_BASE_URL"):
        upstream = merged.setdefault("default_upstream", {})
        if isinstance(upstream, dict):
            upstream.setdefault("api_base", base)
    preset = env.get(f"{ENV_PREFIX}PRESET", merged.get("preset"))
    fill(merged, PRESETS.get(preset, {}) if isinstance(preset, str) else {}, Settings())
    with faults.collected():
        overlay(merged, env)
    resolved = resolve(merged, env, faults)
    try:
        settings = build(Settings, resolved)
    except ConfigError as exc:
        faults.found += [fault for fault in exc.faults if not faults.explain(fault)]
    faults.found = [naming_the_variable(fault, env) for fault in faults.found]
    faults.raise_any()
    return settings


def resolve(
    value: Any, env: Mapping[str, str], faults: Faults, path: str = "", secret: bool = False
) -> Any:
    """`value` with `os.environ/NAME` and `${NAME}` (or `${NAME:-default}`) replaced. A variable
    that is not set and has no default is a fault; the reference stays."""
    if isinstance(value, Mapping):
        secrets = {k: secret or bool(_SECRET_KEYS.search(str(k))) for k in value}
        return {
            k: resolve(v, env, faults, join(path, str(k)), secrets[k]) for k, v in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [resolve(v, env, faults, f"{path}[{i}]", secret) for i, v in enumerate(value)]
    if isinstance(value, str):
        text = value
        with faults.collected():
            begins = value and value != _LITELLM_REF and _LITELLM_REF.startswith(value)
            # A reference that was cut would be taken for the key itself, and is easy to guess.
            if secret and ("${" in _BRACED.sub("", value) or begins):
                raise ConfigError(f"{path}: a reference to a variable that is not complete")
            if value.startswith(_LITELLM_REF):
                text = _lookup(value.removeprefix(_LITELLM_REF), None, env, path)
            else:
                text = _BRACED.sub(lambda m: _lookup(m[1], m[2], env, path), value)
        # Keys from files and secret managers often end with a newline.
        return Secret(text.strip()) if secret else text
    return value


def _lookup(name: str, default: str | None, env: Mapping[str, str], path: str) -> str:
    found = env.get(name, default)
    if found is None:
        raise ConfigError(f"{path}: environment variable {name!r} is not set")
    return found
