"""Settings from environment variables, and references to variables in a config.

A variable names the keys: `GATEWAY_SERVER__PORT=9000` sets `server.port`."""

import re
import types
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, Union, cast, get_args, get_origin, get_type_hints

from gateway.config.keys_and_types import join
from gateway.config.settings import Settings
from gateway.config.values import ENV_PREFIX, ENV_SEPARATOR, SET_BY, Faults, Secret, key_path
from gateway.errors import ConfigError
from gateway.values import FieldDict, Texts

# Maps whose keys are states, written in capitals; all other keys are lower case.
_BY_STATE = (("model_routing",), ("injection", "cooldown_steps"))
_TOP_LEVEL_VALUES = frozenset(
    f.name
    for f in fields(Settings)
    if f.default_factory is dict or f.default == () or f.name == "preset"
)


def overlay(merged: FieldDict, env: Texts) -> None:
    """Put the settings of `env` into `merged`; lists and maps are written as YAML or JSON. Raises
    ConfigError: the text of a list or map is not YAML; that variable is left out."""
    faults = Faults()
    for name, keys in _key_paths(env):
        value: Any = env[name]
        if _is_collection(_hint(keys)):
            import yaml

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


def naming_the_variable(fault: str, env: Texts) -> str:
    """`fault`, with the name of the variable that set the refused value, if one did."""
    path = key_path(fault)
    found = [name for name, keys in _key_paths(env) if path in (keys[0], ".".join(keys))]
    if path == "default_upstream.api_base" and repr(env.get("OPENAI_BASE_URL")) in fault:
        found.append("OPENAI_BASE_URL")
    return next((f"{fault}{SET_BY}{name})" for name in found), fault)


def misspelt_variables(env: Texts) -> list[tuple[str, str]]:
    """(variable, the right name) of each whose underscores are wrong, as in `GATEWAY_SERVER_PORT`.
    Addresses that Kubernetes puts into such variables (`tcp://...`) are not meant as settings."""
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
    hints = get_type_hints(section)
    for each in fields(section):
        name = prefix + each.name.upper()
        if is_dataclass(hints[each.name]):
            yield from _variables(cast(type, hints[each.name]), name + ENV_SEPARATOR)
        else:
            yield name


def _key_paths(env: Texts) -> Iterator[tuple[str, list[str]]]:
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
        if is_dataclass(hint):
            hint = get_type_hints(hint).get(key)
        else:
            hint = (*get_args(hint), None, None)[1]
    return hint


def _is_collection(hint: Any) -> bool:
    if isinstance(hint, types.UnionType) or get_origin(hint) is Union:
        return any(map(_is_collection, get_args(hint)))
    return get_origin(hint) in (tuple, list, dict, Mapping)


_BRACED = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")
_LITELLM_REF = "os.environ/"
ANY = ""  # in place of a variable's name: the value of those that are not set
_UNSET = "https://unset.invalid/"  # with the name: a value that is a URL, and reaches nobody
# As in a LiteLLM proxy, a deployment whose key or address is missing fails when it is called.
_MAY_BE_UNSET = re.compile(r"model_list\[\d+\]\.litellm_params\.(?!model$)")
_SECRET_KEYS = re.compile(
    r"(^|_)((api_?|admin_|master_|gateway_)keys?|secret|token|password|credentials)(_|$)|access_key"
)


def resolve(value: Any, env: Texts, faults: Faults, path: str = "", secret: bool = False) -> Any:
    """`value` with `os.environ/NAME` and `${NAME}` (or `${NAME:-default}`) replaced. A variable
    that is not set and has no default is a fault, and the reference stays; in the parameters of a
    deployment it is none (`unset_variables`)."""
    if isinstance(value, Mapping):
        secrets = {k: secret or bool(_SECRET_KEYS.search(str(k))) for k in value}
        return {
            k: resolve(v, env, faults, path=join(path, str(k)), secret=secrets[k])
            for k, v in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [
            resolve(v, env, faults, path=f"{path}[{i}]", secret=secret) for i, v in enumerate(value)
        ]
    if isinstance(value, str):
        text = value
        with faults.collected():
            begins = value and value != _LITELLM_REF and _LITELLM_REF.startswith(value)
            # A reference that was cut would be taken for the key itself, and is easy to guess.
            bare = re.fullmatch(r"\$[A-Z][A-Z0-9_]+", value)
            if secret and (bare or begins or "${" in _BRACED.sub("", value)):
                raise ConfigError(f"{path}: a reference to a variable is written ${{NAME}}")
            if value.startswith(_LITELLM_REF):
                text = _lookup(value.removeprefix(_LITELLM_REF), None, env, path=path)
            else:
                text = _BRACED.sub(lambda m: _lookup(m[1], m[2], env, path=path), value)
            text = text[max(text.find(_UNSET), 0) :]
        # Keys from files and secret managers often end with a newline.
        if secret:
            return Secret(text.strip())
        return text
    return value


def unset_variables(settings: Settings) -> Iterator[str]:
    """A line for each parameter of a deployment whose variable is not set, with its path."""
    for i, each in enumerate(settings.model_list):
        for key, value in each.litellm_params.items():
            if unset := re.match(rf"{_UNSET}(\w+)", str(value)):
                yield (
                    f"model_list[{i}].litellm_params.{key}: environment variable {unset[1]!r} is "
                    f"not set: calls of {each.model_name!r} fail there"
                )


def _lookup(name: str, default: str | None, env: Texts, path: str) -> str:
    found = env.get(name, env.get(ANY) if default is None else default)
    if found is None and _MAY_BE_UNSET.match(path):
        return _UNSET + name
    if found is None:
        raise ConfigError(f"{path}: environment variable {name!r} is not set")
    return found
