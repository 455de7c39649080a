"""Reading settings: defaults < preset < config file < environment."""

from __future__ import annotations

import copy
import os
import re
from collections.abc import Mapping, Set
from pathlib import Path
from typing import Any

from gateway.config.environment import ENV_PREFIX, naming_the_variable, overlay
from gateway.config.litellm_form import environment_variables, misplaced, translate
from gateway.config.presets import fill
from gateway.config.schema import build, join
from gateway.config.settings import Settings
from gateway.config.values import Faults, Secret
from gateway.config.yaml_file import read_config_file
from gateway.errors import ConfigError

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
        ConfigError: the file is missing or is not YAML, or has wrong keys or values: all of them,
            each with its line.
    """
    env = dict(os.environ if env is None else env)
    chosen = (
        path or env.get("GATEWAY_CONFIG") or (DEFAULT_FILE if Path(DEFAULT_FILE).exists() else None)
    )
    file = read_config_file(chosen) if chosen else None
    raw = file.values if file is not None else {}
    if not upstreams:
        raw, env = left_out(_UPSTREAM_KEYS, raw, env)
        env.pop("OPENAI_BASE_URL", None)
    faults = Faults()
    faults.found.extend(file.repeated if file is not None else ())
    try:
        settings = settings_from_dict(raw, env)
    except ConfigError as exc:
        faults.found.extend(file.located(exc.faults) if file is not None else exc.faults)
    faults.raise_any()
    return settings


def left_out(
    sections: Set[str], raw: Mapping[str, Any], env: Mapping[str, str]
) -> tuple[dict[str, Any], dict[str, str]]:
    """The values of a file, and the variables, without some sections."""
    prefixes = tuple(f"{ENV_PREFIX}{key.upper()}" for key in sections)
    return (
        {key: value for key, value in raw.items() if key not in sections},
        {name: text for name, text in env.items() if not name.startswith(prefixes)},
    )


def settings_from_dict(raw: Mapping[str, Any], env: Mapping[str, str] | None = None) -> Settings:
    """Settings from plain values; references are resolved, `GATEWAY_*` variables win.

    Raises:
        ConfigError: keys are unknown or values refused: all of them, each with its key path and
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
    fill(merged, env.get(f"{ENV_PREFIX}PRESET", merged.get("preset")), Settings())
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
    """`value` with `os.environ/NAME` and `${NAME}` (or `${NAME:-default}`) replaced.

    A variable that is not set and has no default is a fault; the reference stays.
    """
    if isinstance(value, Mapping):
        return {
            k: resolve(
                v, env, faults, join(path, str(k)), secret or bool(_SECRET_KEYS.search(str(k)))
            )
            for k, v in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [resolve(v, env, faults, f"{path}[{i}]", secret) for i, v in enumerate(value)]
    if isinstance(value, str):
        text = value
        with faults.collected():
            if secret:
                _refuse_cut(value, path)
            text = _resolve_text(value, env, path)
        # Keys from files and secret managers often end with a newline.
        return Secret(text.strip()) if secret else text
    return value


def _refuse_cut(text: str, path: str) -> None:
    """Refuse a reference that was cut: it would be taken for the key itself, and is easy to guess.

    Raises: ConfigError.
    """
    rest = _BRACED.sub("", text)
    if "${" in rest or (text and text != _LITELLM_REF and _LITELLM_REF.startswith(text)):
        raise ConfigError(f"{path}: a reference to a variable that is not complete")


def _resolve_text(text: str, env: Mapping[str, str], path: str) -> str:
    if text.startswith(_LITELLM_REF):
        return _lookup(text.removeprefix(_LITELLM_REF), None, env, path)
    return _BRACED.sub(lambda m: _lookup(m[1], m[2], env, path), text)


def _lookup(name: str, default: str | None, env: Mapping[str, str], path: str) -> str:
    found = env.get(name, default)
    if found is None:
        raise ConfigError(f"{path}: environment variable {name!r} is not set")
    return found
