"""A config file: its values, the line of each key, and LiteLLM's sections translated.

An existing LiteLLM config loads unchanged. Source: the config reference of the LiteLLM proxy
(`model_list`, `router_settings`, `litellm_settings`, `general_settings`,
`environment_variables`).
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path
from typing import Any

import yaml

from gateway.config.schema import join
from gateway.config.values import SET_BY, key_path
from gateway.errors import ConfigError

_ROUTER_KEYS = {
    "num_retries": "num_retries",
    "fallbacks": "fallbacks",
    "cooldown_time": "cooldown_s",
    "allowed_fails": "allowed_fails",
}
_TIMEOUT_KEYS = {"timeout": "first_byte_s", "request_timeout": "first_byte_s"}
LITELLM_SECTIONS = (
    *("router_settings", "litellm_settings", "general_settings"),
    "environment_variables",
)
_CLOSING_SECTIONS = (
    *("auth", "budgets", "control", "default_upstream", "model_list"),
    *("server", "steering", "storage"),
)
_USED_KEYS = frozenset(
    {*_ROUTER_KEYS, *_TIMEOUT_KEYS, "default_fallbacks", "master_key", "model_group_alias"}
)


def translate(raw: dict[str, Any]) -> dict[str, Any]:
    """`raw` without LiteLLM's sections; what applies here is moved to the gateway's sections.

    The gateway's own sections win. Keys of features that only the LiteLLM proxy has are dropped;
    `ignored_keys` lists them.
    """
    out = {k: v for k, v in raw.items() if k not in LITELLM_SECTIONS}
    for section in ("router_settings", "litellm_settings"):
        values = raw.get(section)
        if not isinstance(values, dict):
            continue
        default, own = values.get("default_fallbacks"), values.get("fallbacks") or []
        if isinstance(default, list) and isinstance(own, list):
            values = {**values, "fallbacks": [*own, {"*": default}]}
        _move(values, _ROUTER_KEYS, out, "router")
        _move(values, _TIMEOUT_KEYS, out, "timeouts")
        _add_aliases(values.get("model_group_alias"), out)
    general = raw.get("general_settings")
    if isinstance(general, dict) and general.get("master_key"):
        auth = out.setdefault("auth", {})
        if isinstance(auth, dict):
            auth.setdefault("admin_key", general["master_key"])
            auth.setdefault("gateway_keys", {"default": general["master_key"]})
    return out


def misplaced(raw: Mapping[str, Any]) -> list[str]:
    """Faults of what would close or direct nothing, though it looks as if it did: a section of the
    gateway within values of which any key is accepted, and sections of LiteLLM that are no
    mappings. A wrong indentation is enough for that."""
    listed = raw.get("model_list")
    places = {name: raw.get(name) for name in LITELLM_SECTIONS}
    faults = [
        f"{name}: expected a mapping, got {type(value).__name__}"
        for name, value in places.items()
        if value and not isinstance(value, dict)
    ]
    for i, deployment in enumerate(listed if isinstance(listed, list) else ()):
        for name in ("litellm_params", "model_info") if isinstance(deployment, dict) else ():
            places[f"model_list[{i}].{name}"] = deployment.get(name)
    return faults + [
        f"{place}.{section}: a section of its own, which begins at the left margin"
        for place, value in places.items()
        if isinstance(value, dict)
        for section in _CLOSING_SECTIONS
        if isinstance(value.get(section), (dict, list))
    ]


def ignored_keys(raw: dict[str, Any]) -> list[str]:
    """Key paths of LiteLLM's sections that have no meaning here, for `gateway check-config`."""
    return [
        f"{section}.{key}"
        for section in LITELLM_SECTIONS
        if isinstance(raw.get(section), dict) and section != "environment_variables"
        for key in raw[section]
        if key not in _USED_KEYS
    ]


def written_as(path: str) -> list[str]:
    """The key paths by which a file may have set the key at `path`; its own is the first."""
    found = [path]
    for names, ours in ((_ROUTER_KEYS, "router"), (_TIMEOUT_KEYS, "timeouts")):
        for theirs, key in names.items():
            if path == f"{ours}.{key}" or path.startswith((f"{ours}.{key}.", f"{ours}.{key}[")):
                rest = path.removeprefix(f"{ours}.{key}")
                sections = ("router_settings", "litellm_settings")
                found += [f"{section}.{theirs}{rest}" for section in sections]
    return found


def environment_variables(raw: Mapping[str, Any]) -> dict[str, str]:
    """The file's `environment_variables`: used for references that the environment does not set."""
    values = raw.get("environment_variables")
    return {str(k): str(v) for k, v in values.items()} if isinstance(values, dict) else {}


def _add_aliases(aliases: Any, out: dict[str, Any]) -> None:
    """Add the deployments of each name again under its aliases."""
    listed = out.get("model_list")
    if not isinstance(aliases, dict) or not isinstance(listed, list):
        return
    known = {d.get("model_name") for d in listed if isinstance(d, dict)}
    out["model_list"] = listed + [
        {**deployment, "model_name": alias}
        for alias, of in aliases.items()
        if alias not in known
        for deployment in listed
        if isinstance(deployment, dict)
        and deployment.get("model_name") == (of.get("model") if isinstance(of, dict) else of)
    ]


def _move(values: dict[str, Any], names: dict[str, str], out: dict[str, Any], section: str) -> None:
    for theirs, ours in names.items():
        if values.get(theirs) is not None:
            target = out.setdefault(section, {})
            if isinstance(target, dict):
                target.setdefault(ours, values[theirs])


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigFile:
    """The values of a config file; `lines`: the line of each key path, from 1. `repeated`: faults
    of keys that are set twice, of which YAML would use the last."""

    name: str
    values: dict[str, Any] = field(default_factory=dict)
    lines: Mapping[str, int] = field(default_factory=dict)
    repeated: tuple[str, ...] = ()

    def located(self, faults: Iterable[str]) -> list[str]:
        """`faults`, each with the file and the line of its key, in the order of the lines."""
        lines = [(self._line(fault), fault) for fault in faults]
        return [
            f"{self.name}, line {line}: {fault}"
            if line
            else (fault if SET_BY in fault else f"{self.name}: {fault}")
            for line, fault in sorted(lines, key=itemgetter(0))
        ]

    def _line(self, fault: str) -> int:
        """The line of the key, or of the nearest key above it; 0 for what is not in the file."""
        if SET_BY in fault:
            return 0
        for path in written_as(key_path(fault)):
            while path:
                if line := self.lines.get(path):
                    return line
                path = path[: max(path.rfind("."), path.rfind("["), 0)]
        return 0


def read_config_file(path: str | os.PathLike[str]) -> ConfigFile:
    """The file at `path`, which is YAML with a mapping at its top.

    Raises ConfigError: names the file, and the line of a YAML error. A file without any key is one,
    too: it may be about to be written. `{}` says that nothing is set.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        reason = exc.strerror if isinstance(exc, OSError) else f"not UTF-8 text: {exc.reason}"
        raise ConfigError(f"{path}: cannot be read: {reason}") from exc
    try:
        return _parsed(str(path), text)
    except yaml.MarkedYAMLError as exc:
        mark = exc.problem_mark
        where = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise ConfigError(f"{path}{where}: {exc.problem}") from exc
    except (yaml.YAMLError, ValueError) as exc:  # a date or number that does not exist
        raise ConfigError(f"{path}: {exc}") from exc
    except RecursionError as exc:
        raise ConfigError(f"{path}: nested too deeply, or within itself") from exc


def read_file(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The values of a config file. Raises ConfigError: as for `read_config_file`, and for keys that
    are set twice."""
    file = read_config_file(path)
    if file.repeated:
        raise ConfigError(*file.repeated)
    return file.values


def _parsed(name: str, text: str) -> ConfigFile:
    loader = yaml.SafeLoader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            raise ConfigError(f"{name}: the file is empty; to set nothing, write {{}}")
        lines: dict[str, int] = {}
        repeated = [
            f"{name}, line {mark.line + 1}, column {mark.column + 1}: {where} is set twice, "
            f"first in line {first}"
            for where, mark, first in _keys(node, "", set(), lines)
        ]
        values = loader.construct_document(node)
    finally:
        loader.dispose()
    if values is None:
        raise ConfigError(f"{name}: the file is empty; to set nothing, write {{}}")
    if not isinstance(values, dict):
        raise ConfigError(f"{name}: expected a mapping at the top, got {type(values).__name__}")
    json.dumps(values, default=str, skipkeys=True)  # ValueError for a value within itself
    return ConfigFile(name=name, values=values, lines=lines, repeated=tuple(repeated))


def _keys(
    node: yaml.Node, path: str, seen: set[int], lines: dict[str, int]
) -> Iterator[tuple[str, yaml.Mark, int]]:
    """Note the line of every key; yields those set twice: (key path, place, first line)."""
    if id(node) in seen:
        return  # an alias
    seen.add(id(node))
    if isinstance(node, yaml.SequenceNode):
        for i, item in enumerate(node.value):
            lines[f"{path}[{i}]"] = item.start_mark.line + 1
            yield from _keys(item, f"{path}[{i}]", seen, lines)
    if isinstance(node, yaml.MappingNode):
        first: dict[str, int] = {}
        for key, value in node.value:
            where = join(path, str(key.value))
            line = lines[where] = key.start_mark.line + 1
            if where in first:
                yield where, key.start_mark, first[where]
            first.setdefault(where, line)
            yield from _keys(value, where, seen, lines)
