"""Reading settings: defaults < preset < config file < environment.

A variable names the keys: `GATEWAY_SERVER__PORT=9000` sets `server.port`. An existing LiteLLM
config loads unchanged. Source: the config reference of the LiteLLM proxy (`model_list`,
`router_settings`, `litellm_settings`, `general_settings`, `environment_variables`)."""

import copy
import dataclasses
import json
import os
import re
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from dataclasses import field, fields, is_dataclass, replace
from operator import attrgetter, itemgetter
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml

from gateway.config.removed import drop_removed
from gateway.config.schema import build, join
from gateway.config.settings import (
    PRESETS,
    Deployment,
    Settings,
    UpstreamSettings,
    fill,
)
from gateway.config.values import ENV_PREFIX, ENV_SEPARATOR, SET_BY, Faults, Secret, key_path
from gateway.data_files import read_toml
from gateway.errors import ConfigError
from gateway.hooks import given, named
from gateway.values import FieldDict, Fields, Texts, frozen
from gateway.wire.coerce import as_mapping, list_at, mapping_at

_ROUTER_KEYS = {name: name for name in ("num_retries", "fallbacks", "allowed_fails")}
_ROUTER_KEYS["cooldown_time"] = "cooldown_s"
_TIMEOUT_KEYS = {"timeout": "first_byte_s", "request_timeout": "first_byte_s"}
_MOVED_SECTIONS = ("router_settings", "litellm_settings")
LITELLM_SECTIONS = (*_MOVED_SECTIONS, "general_settings", "environment_variables")
_LITELLM = read_toml(__package__, "litellm.toml")
OTHER_SECTIONS = frozenset(_LITELLM["sections"])
ENTRY_KEYS = frozenset(_LITELLM["entry_keys"])
_NOT_HONOURED = [(re.compile(k, re.MULTILINE), v) for k, v in _LITELLM["not_honoured"].items()]
_NAMING = tuple(_LITELLM["lists"])
_PARTS = ("litellm_params", "model_info")
CLOSING_SECTIONS = (
    "auth",
    "budgets",
    "control",
    "default_upstream",
    "model_list",
    "server",
    "steering",
    "storage",
)
_USED_KEYS = frozenset(
    {*_ROUTER_KEYS, *_TIMEOUT_KEYS, "default_fallbacks", "master_key", "model_group_alias"}
    | {"context_window_fallbacks", "content_policy_fallbacks"}
)


def translate(raw: FieldDict) -> FieldDict:
    """`raw` without LiteLLM's sections: what applies here is moved to the gateway's own, which win;
    keys of features that only the LiteLLM proxy has are dropped (see `ignored_keys`)."""
    out = {k: v for k, v in raw.items() if k not in OTHER_SECTIONS.union(LITELLM_SECTIONS)}
    listed = out.get("model_list")
    for each in listed if isinstance(listed, list) else ():
        for key in ENTRY_KEYS.intersection(each if isinstance(each, dict) else ()):
            del each[key]
    aliases: FieldDict = {}
    for section in _MOVED_SECTIONS:
        aliases |= mapping_at(mapping_at(raw, section), "model_group_alias")
    for section in _MOVED_SECTIONS:
        values = raw.get(section)
        if not isinstance(values, dict):
            continue
        own = values.get("fallbacks") or []
        default = values.get("default_fallbacks")
        if isinstance(own, list):
            if isinstance(default, list):
                last = [{"*": default}]
            else:
                last = []
            values = {
                **values,
                "fallbacks": [*own, *_further_fallbacks(values, aliases), *last] or None,
            }
        _move(values, _ROUTER_KEYS, out, section="router")
        _move(values, _TIMEOUT_KEYS, out, section="timeouts")
    _add_aliases(aliases, out)
    general = raw.get("general_settings")
    if isinstance(general, dict) and general.get("master_key"):
        auth = out.setdefault("auth", {})
        if isinstance(auth, dict):
            auth.setdefault("admin_key", general["master_key"])
            auth.setdefault("gateway_keys", {"default": general["master_key"]})
    return out


def misplaced(raw: Fields) -> list[str]:
    """Returns errors for settings that have no effect where they stand: a section of the gateway
    inside values that accept any key, and sections of LiteLLM that are no mappings. A wrong
    indentation is enough, and the setting would look as if it closed or directed something."""
    listed = raw.get("model_list")
    places = {name: raw.get(name) for name in LITELLM_SECTIONS}
    faults = [
        f"{name}: expected a mapping of keys to values"
        for name, value in places.items()
        if value and not isinstance(value, dict)
    ]
    places |= {name: raw.get(name) for name in OTHER_SECTIONS}
    for i, deployment in enumerate(listed if isinstance(listed, list) else ()):
        for name in _PARTS if isinstance(deployment, dict) else ():
            places[f"model_list[{i}].{name}"] = deployment.get(name)
    return faults + [
        f"{place}.{section}: a section of its own, which begins at the left margin"
        for place, value in places.items()
        if isinstance(value, dict)
        for section in CLOSING_SECTIONS
        if isinstance(value.get(section), (dict, list))
    ]


def ignored_keys(raw: FieldDict) -> dict[str, str]:
    """Returns the key paths of LiteLLM that have no effect here, for `gateway check-config`. A
    key that closes or limits something in LiteLLM comes with the setting that does so here;
    others with an empty text. Other keys within a deployment do have an effect."""
    sections = {name: raw.get(name) for name in (*_MOVED_SECTIONS, "general_settings")}
    listed = raw.get("model_list")
    for i, each in enumerate(listed if isinstance(listed, list) else ()):
        if isinstance(each, dict):
            sections[f"model_list[{i}]"] = {k: v for k, v in each.items() if k in ENTRY_KEYS}
            sections |= {f"model_list[{i}].{part}": each.get(part) for part in _PARTS}
    found = {name: raw[name] for name in raw if name in OTHER_SECTIONS}
    for section, values in sections.items():
        if isinstance(values, dict):
            found |= {f"{section}.{k}": v for k, v in values.items() if k not in _USED_KEYS}
    for path, value in found.items():
        names = value if path.endswith(_NAMING) and isinstance(value, list) else ()
        text = "\n".join([path, *(f".{name}" for name in names)])
        rows = (here for each, here in _NOT_HONOURED if value and each.search(text))
        found[path] = next(rows, "")
    return {path: here for path, here in found.items() if here or path.count(".") < 2}


def written_as(path: str) -> list[str]:
    """The key paths by which a file may have set the key at `path`; its own is the first."""
    found = [path]
    for names, ours in ((_ROUTER_KEYS, "router"), (_TIMEOUT_KEYS, "timeouts")):
        for theirs, key in names.items():
            if path == f"{ours}.{key}" or path.startswith((f"{ours}.{key}.", f"{ours}.{key}[")):
                rest = path.removeprefix(f"{ours}.{key}")
                found += [f"{section}.{theirs}{rest}" for section in _MOVED_SECTIONS]
    return found


def _add_aliases(aliases: Any, out: FieldDict) -> None:
    """Add the deployments of each name again under its aliases."""
    listed = out.get("model_list")
    if not isinstance(aliases, dict) or not isinstance(listed, list):
        return
    known = [d.get("model_name") for d in listed if isinstance(d, dict)]
    out["model_list"] = listed + [
        {**deployment, "model_name": alias}
        for alias, of in aliases.items()
        if alias not in known
        for deployment in listed
        if isinstance(deployment, dict)
        and deployment.get("model_name") == (of.get("model") if isinstance(of, dict) else of)
    ]


_CONTENT_FALLBACKS = ("context_window", "content_policy")


def _further_fallbacks(values: Fields, aliases: Fields) -> Iterator[FieldDict]:
    """Returns further entries of `router.fallbacks`: LiteLLM's fallbacks by reason (context
    window, content policy), and those that aliases of a name bring."""
    marks = {f"{kind}_fallbacks": f"{kind}:" for kind in _CONTENT_FALLBACKS}
    for key, mark in {"fallbacks": "", **marks}.items():
        known: FieldDict = {}
        for entry in list_at(values, key):
            known |= as_mapping(entry)
        given = known.copy() if mark else {}
        for alias, of in aliases.items():
            named = as_mapping(of).get("model", of)
            if alias not in known and named in known:
                given[alias] = known[named]
        yield from ({f"{mark}{name}": models} for name, models in given.items())


def _move(values: FieldDict, names: dict[str, str], out: FieldDict, section: str) -> None:
    for theirs, ours in names.items():
        if values.get(theirs) is not None:
            target = out.setdefault(section, {})
            if isinstance(target, dict):
                target.setdefault(ours, values[theirs])


@frozen
class ConfigFile:
    """The values of a config file."""

    name: str  # as messages call it
    values: FieldDict = field(default_factory=dict)  # by section, as YAML gives them
    lines: Mapping[str, int] = field(default_factory=dict)  # line of each key path, from 1
    repeated: tuple[str, ...] = ()  # faults of keys that are set twice: YAML would use the last

    def located(self, faults: Iterable[str]) -> list[str]:
        """`faults`, each with the file and the line of its key, in the order of the lines."""
        lines = [(self._line(fault), fault) for fault in faults]
        places = {line: f"{self.name}, line {line}: " for line, _ in lines} | {0: f"{self.name}: "}
        return [
            fault if SET_BY in fault else f"{places[line]}{fault}"
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


def read_config_file(path: str | os.PathLike[str], check: Callable[[str], Any] = str) -> ConfigFile:
    """The file at `path`. Raises ConfigError, with the line: no YAML, or no mapping at its top. An
    empty file may be about to be written; `{}` says that nothing is set. `check` may refuse it."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        if isinstance(exc, OSError):
            reason = exc.strerror
        else:
            reason = f"not UTF-8 text: {exc.reason}"
        raise ConfigError(f"{path}: cannot be read: {reason}") from exc
    try:
        check(text)
        return _parsed(str(path), text)
    except yaml.MarkedYAMLError as exc:
        mark = exc.problem_mark
        where = ""
        if mark:
            where = f", line {mark.line + 1}, column {mark.column + 1}"
        problem = "a tab; YAML is indented with spaces" if "'\\t'" in str(exc) else exc.problem
        raise ConfigError(f"{path}{where}: {problem}") from exc
    except (yaml.YAMLError, ValueError) as exc:  # a date or number that does not exist
        raise ConfigError(f"{path}: {exc}") from exc
    except RecursionError as exc:
        raise ConfigError(f"{path}: nested too deeply, or within itself") from exc


def read_file(path: str | os.PathLike[str]) -> FieldDict:
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
        lines: dict[str, int] = {}
        repeated = [
            f"{name}, line {mark.line + 1}, column {mark.column + 1}: {where} is set twice, "
            f"first in line {first}"
            for where, mark, first in _keys(node, "", set(), lines=lines)
        ]
        if node is None:
            values = None
        else:
            values = loader.construct_document(node)
    finally:
        loader.dispose()
    if values is None:
        raise ConfigError(f"{name}: the file is empty; to set nothing, write {{}}")
    if not isinstance(values, dict):
        raise ConfigError(f"{name}: expected a mapping of keys to values at the top")
    json.dumps(values, default=str, skipkeys=True)  # ValueError for a value within itself
    return ConfigFile(name=name, values=values, lines=lines, repeated=tuple(repeated))


def _keys(
    node: yaml.Node | None, path: str, seen: set[int], lines: dict[str, int]
) -> Iterator[tuple[str, yaml.Mark, int]]:
    """Note the line of every key; yields those set twice: (key path, place, first line)."""
    if id(node) in seen:
        return  # an alias
    seen.add(id(node))
    if isinstance(node, yaml.SequenceNode):
        for i, item in enumerate(node.value):
            lines[f"{path}[{i}]"] = item.start_mark.line + 1
            yield from _keys(item, f"{path}[{i}]", seen, lines=lines)
    if isinstance(node, yaml.MappingNode):
        first: dict[str, int] = {}
        for key, value in node.value:
            where = join(path, str(key.value))
            line = lines[where] = key.start_mark.line + 1
            if where in first:
                yield where, key.start_mark, first[where]
            first.setdefault(where, line)
            yield from _keys(value, where, seen, lines=lines)


# Maps whose keys are states, written in capitals; all other keys are lower case.
_BY_STATE = (("model_routing",), ("injection", "cooldown_steps"))
_TOP_LEVEL_VALUES = frozenset(
    f.name
    for f in dataclasses.fields(Settings)
    if f.default_factory is dict
    or f.default == ()
    or typing.get_origin(f.default_factory) is tuple
    or f.name == "preset"
)


def overlay(merged: FieldDict, env: Texts) -> None:
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


def naming_the_variable(fault: str, env: Texts) -> str:
    """`fault`, with the name of the variable that set the refused value, if one did."""
    path = key_path(fault)
    variables = _key_paths(env)
    found = (name for name, keys in variables if path in (keys[0], ".".join(keys)))
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
    hints = typing.get_type_hints(section)
    for each in dataclasses.fields(section):
        name = prefix + each.name.upper()
        if dataclasses.is_dataclass(hints[each.name]):
            yield from _variables(typing.cast(type, hints[each.name]), name + ENV_SEPARATOR)
        elif each.init:
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
CHOSEN_CONFIG: list[str] = []  # `--config FILE`, if this process has one, for printed commands

_BRACED = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")
_LITELLM_REF = "os.environ/"
_ANY = ""  # in place of a variable's name: the value of those that are not set
_SECRET_KEYS = re.compile(
    r"(^|_)((api_?|admin_|master_|gateway_)keys?|secret|token|password|credentials)(_|$)|access_key"
)


_UPSTREAM_KEYS = frozenset(
    {"model_list", "default_upstream", "router", "auth", "embedding"}
    | {"litellm_settings", "router_settings", "general_settings"}
).union(key for key, kind in named("settings").items() if hasattr(kind, "NAMES_KEYS"))
"""Sections that commands which only read the store leave out: they may name missing keys."""


def load_settings(
    path: str | os.PathLike[str] | None = None,
    env: Texts | None = None,
    *,
    upstreams: bool | None = True,
) -> Settings:
    """Settings from `path` (or `./config.yaml` when there is one) and the environment; without
    `upstreams` those of providers, and their keys, are left out; None: a variable that is not set
    is no fault, for what sends nothing. Raises ConfigError: all faults of
    the file and of the values, each with its line."""
    env = dict(os.environ if env is None else env)
    default = None
    if Path(DEFAULT_FILE).exists():
        default = DEFAULT_FILE
    chosen = path or env.get("GATEWAY_CONFIG") or default
    file = None
    if chosen:
        file = read_config_file(chosen)
    raw = file.values if file else {}
    if upstreams is False:
        raw, env = left_out(_UPSTREAM_KEYS, raw, env)
        env.pop("OPENAI_BASE_URL", None)
    if upstreams is None:
        env[_ANY] = "unset"
    faults = list(file.repeated) if file else []
    try:
        settings = settings_from_dict(raw, env)
    except ConfigError as exc:
        faults += file.located(exc.faults) if file else exc.faults
    if faults:
        raise ConfigError(*faults)
    return settings


def left_out(sections: Set[str], raw: Fields, env: Texts) -> tuple[FieldDict, dict[str, str]]:
    """The values of a file, and the variables, without some sections."""
    prefixes = tuple(f"{ENV_PREFIX}{key.upper()}" for key in sections)
    kept = {key: value for key, value in raw.items() if key not in sections}
    return kept, {name: text for name, text in env.items() if not name.startswith(prefixes)}


def settings_from_dict(raw: Fields, env: Texts | None = None) -> Settings:
    """Settings from plain values; references are resolved, `GATEWAY_*` variables win. Raises
    ConfigError: all unknown keys and refused values, with key path and variable."""
    faults = Faults()
    faults.found += misplaced(raw)
    merged = translate(copy.deepcopy(dict(raw)))
    own = raw.get("environment_variables")  # for references that the environment does not set
    if isinstance(own, dict):
        own = {str(k): str(v) for k, v in own.items()}
    else:
        own = {}
    env = {**own, **(env or {})}
    if base := env.get("OPENAI_BASE_URL"):
        upstream = merged.setdefault("default_upstream", {})
        if isinstance(upstream, dict):
            upstream.setdefault("api_base", base)
    preset = env.get(f"{ENV_PREFIX}PRESET", merged.get("preset"))
    fill(merged, PRESETS.get(preset, {}) if isinstance(preset, str) else {}, Settings())
    with faults.collected():
        overlay(merged, env)
    faults.found += drop_removed(merged)
    resolved = resolve(merged, env, faults)
    try:
        settings = build(Settings, resolved)
    except ConfigError as exc:
        faults.found += [fault for fault in exc.faults if not faults.explain(fault)]
    faults.found = [naming_the_variable(fault, env) for fault in faults.found]
    faults.raise_any()
    return settings


def resolve(value: Any, env: Texts, faults: Faults, path: str = "", secret: bool = False) -> Any:
    """`value` with `os.environ/NAME` and `${NAME}` (or `${NAME:-default}`) replaced. A variable
    that is not set and has no default is a fault; the reference stays."""
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
        # Keys from files and secret managers often end with a newline.
        if secret:
            return Secret(text.strip())
        return text
    return value


def _lookup(name: str, default: str | None, env: Texts, path: str) -> str:
    found = env.get(name, env.get(_ANY) if default is None else default)
    if found is None:
        raise ConfigError(f"{path}: environment variable {name!r} is not set")
    return found


# Settings that a reload of the config does not change, and changes that it refuses.

_RELOAD = read_toml(__package__, "reload.toml")
_AT_START: list[str] = _RELOAD["at_start"]
_CLOSING: list[str] = _RELOAD["closing"]


def changes_at_restart(old: Settings, new: Settings) -> list[str]:
    """The keys that differ and take effect at the next start only."""
    return [key for key in _AT_START if attrgetter(key)(old) != attrgetter(key)(new)]


def differences(old: Settings, new: Settings) -> dict[str, str]:
    """Both values of each key path that differs, without secrets."""
    pairs = {each.name: (getattr(old, each.name), getattr(new, each.name)) for each in fields(old)}
    for name, both in list(pairs.items()):
        if is_dataclass(both[0]):
            parts = (part.name for part in fields(both[0]))
            pairs |= {f"{name}.{part}": tuple(getattr(v, part) for v in both) for part in parts}
            del pairs[name]
    return {name: f"{a!r} to {b!r}" for name, (a, b) in pairs.items() if a != b}


def removals(old: Settings, new: Settings, env: Texts = MappingProxyType({})) -> list[str]:
    """Returns the key paths of protecting or directing settings that `old` has and `new` lacks.
    A config that was cut while it was written must open nothing: a reload with any of these is
    refused, while a restart, which a person asks for, applies it. A value that is the beginning
    of the old one counts as cut. Additional keys, deployments and budgets, and other values, are
    accepted. `env`: the environment; `OPENAI_BASE_URL` replaces a missing address."""
    lost = []
    defaults = Settings()
    if base := env.get("OPENAI_BASE_URL"):
        defaults = replace(defaults, default_upstream=UpstreamSettings(api_base=base))
    for key in _CLOSING:
        before, after, default = (attrgetter(key)(each) for each in (old, new, defaults))
        if before != after and (after == default or _is_cut(before, after)):
            lost.append(key)
    lost += _missing_deployments(old.model_list, new.model_list)
    own = old.model_routing
    other = new.model_routing
    lost += [f"model_routing.{state}" for state in own if state not in other]
    for model, routes in old.model_routing_by_model.items():
        kept = new.model_routing_by_model.get(model, {})
        lost += [f"model_routing_by_model.{model}.{state}" for state in routes if state not in kept]
    for lost_by in given("lost"):
        lost += lost_by(old, new)
    return lost


def as_started(old: Settings, new: Settings) -> Settings:
    """Returns `new`, but keeps the settings from `old` that need a restart, so that none takes
    effect in part: otherwise a broken `storage` section could have content stored that was not
    to be."""
    for path in _AT_START:
        section, _, key = path.partition(".")
        value = getattr(old, section)
        if key:
            value = replace(getattr(new, section), **{key: getattr(value, key)})
        new = replace(new, **{section: value})
    return new


def _is_cut(before: Any, after: Any) -> bool:
    texts = isinstance(before, str) and isinstance(after, str)
    return texts and before != after and before.startswith(after)


def _missing_deployments(old: Iterable[Deployment], new: Iterable[Deployment]) -> Iterator[str]:
    """Old deployments for which none of the same name has at least the same keys."""
    left = list(new)
    for deployment in old:
        before = deployment.litellm_params
        for each in left:
            given = each.litellm_params
            same = (each.model_name, each.lane) == (deployment.model_name, deployment.lane)
            if same and all(k in given and not _is_cut(before[k], given[k]) for k in before):
                left.remove(each)
                break
        else:
            yield f"model_list[{deployment.model_name}]"
