"""Reading settings: defaults < preset < config file < environment."""

from __future__ import annotations

import copy
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from gateway.config.environment import ENV_PREFIX, naming_the_variable, overlay
from gateway.config.litellm_form import environment_variables, translate
from gateway.config.presets import fill
from gateway.config.schema import build, join
from gateway.config.settings import Settings
from gateway.config.values import Secret
from gateway.errors import ConfigError

DEFAULT_FILE = "config.yaml"

_BRACED = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")
_LITELLM_REF = "os.environ/"
_SECRET_KEYS = re.compile(r"(^|_)(api_?key|secret|token|password|credentials)(_|$)|access_key")


_UPSTREAM_KEYS = frozenset(
    {"model_list", "default_upstream", "router", "auth", "embedding", "alerts"}
    | {"litellm_settings", "router_settings", "general_settings"}
)
"""What a command does not need that only reads what is stored: it may name keys of others."""


def load_settings(
    path: str | os.PathLike[str] | None = None,
    env: Mapping[str, str] | None = None,
    *,
    upstreams: bool = True,
) -> Settings:
    """Settings from `path` (or `./config.yaml` when there is one) and the environment.

    upstreams: False leaves out the providers and their keys, which then need not be set.

    Raises:
        ConfigError: the file is missing, is not YAML, or has a wrong key or value.
    """
    env = os.environ if env is None else env
    chosen = (
        path or env.get("GATEWAY_CONFIG") or (DEFAULT_FILE if Path(DEFAULT_FILE).exists() else None)
    )
    raw = read_file(chosen) if chosen else {}
    if not upstreams:
        raw = {key: value for key, value in raw.items() if key not in _UPSTREAM_KEYS}
        prefixes = tuple(f"{ENV_PREFIX}{key.upper()}" for key in _UPSTREAM_KEYS)
        env = {name: text for name, text in env.items() if not name.startswith(prefixes)}
        env.pop("OPENAI_BASE_URL", None)
    return settings_from_dict(raw, env)


def settings_from_dict(raw: Mapping[str, Any], env: Mapping[str, str] | None = None) -> Settings:
    """Settings from plain values; references are resolved, `GATEWAY_*` variables win.

    Raises:
        ConfigError: a key is unknown or a value refused; the message names the key or variable.
    """
    merged = translate(copy.deepcopy(dict(raw)))
    env = {**environment_variables(raw), **(env or {})}
    if base := env.get("OPENAI_BASE_URL"):
        upstream = merged.setdefault("default_upstream", {})
        if isinstance(upstream, dict):
            upstream.setdefault("api_base", base)
    fill(merged, env.get(f"{ENV_PREFIX}PRESET", merged.get("preset")), Settings())
    try:
        overlay(merged, env)
        return build(Settings, resolve(merged, env))
    except ConfigError as exc:
        raise naming_the_variable(exc, env) from exc


def read_file(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The YAML mapping in a file.

    Raises:
        ConfigError: names the file, and the line of a YAML error.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        reason = exc.strerror if isinstance(exc, OSError) else f"not UTF-8 text: {exc.reason}"
        raise ConfigError(f"{path}: cannot be read: {reason}") from exc
    try:
        raw = _load_yaml(text)
    except yaml.MarkedYAMLError as exc:
        mark = exc.problem_mark
        where = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise ConfigError(f"{path}{where}: {exc.problem}") from exc
    except yaml.YAMLError as exc:
        raise ConfigError(f"{path}: {exc}") from exc
    if raw is None:
        return {}
    if not isinstance(raw, dict):
        raise ConfigError(f"{path}: expected a mapping at the top, got {type(raw).__name__}")
    return raw


def _load_yaml(text: str) -> Any:
    loader = yaml.SafeLoader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        _refuse_repeated_keys(node, "", set())
        return loader.construct_document(node)
    finally:
        loader.dispose()


def _refuse_repeated_keys(node: yaml.Node, path: str, seen: set[int]) -> None:
    """Raise for a key that is set twice; YAML would silently use the last value."""
    if id(node) in seen:
        return  # an alias
    seen.add(id(node))
    if isinstance(node, yaml.SequenceNode):
        for i, item in enumerate(node.value):
            _refuse_repeated_keys(item, f"{path}[{i}]", seen)
    if isinstance(node, yaml.MappingNode):
        first: dict[str, int] = {}
        for key, value in node.value:
            where = join(path, str(key.value))
            if where in first:
                problem = f"{where} is set twice, first in line {first[where]}"
                raise yaml.MarkedYAMLError(problem=problem, problem_mark=key.start_mark)
            first[where] = key.start_mark.line + 1
            _refuse_repeated_keys(value, where, seen)


def resolve(value: Any, env: Mapping[str, str], path: str = "", secret: bool = False) -> Any:
    """`value` with `os.environ/NAME` and `${NAME}` (or `${NAME:-default}`) replaced.

    Raises:
        ConfigError: a variable is not set and has no default.
    """
    if isinstance(value, Mapping):
        return {
            k: resolve(v, env, join(path, str(k)), secret or bool(_SECRET_KEYS.search(str(k))))
            for k, v in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [resolve(v, env, f"{path}[{i}]", secret) for i, v in enumerate(value)]
    if isinstance(value, str):
        text = _resolve_text(value, env, path)
        # Keys from files and secret managers often end with a newline.
        return Secret(text.strip()) if secret else text
    return value


def _resolve_text(text: str, env: Mapping[str, str], path: str) -> str:
    if text.startswith(_LITELLM_REF):
        return _lookup(text.removeprefix(_LITELLM_REF), None, env, path)
    return _BRACED.sub(lambda m: _lookup(m[1], m[2], env, path), text)


def _lookup(name: str, default: str | None, env: Mapping[str, str], path: str) -> str:
    found = env.get(name, default)
    if found is None:
        raise ConfigError(f"{path}: environment variable {name!r} is not set")
    return found
