"""Reading settings: defaults < preset < config file < environment.

Variables: `environment.py`; the config of a LiteLLM proxy: `litellm.py`; unknown keys and wrong
types: `keys_and_types.py`; defaults: `settings.py`."""

import copy
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import field
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING

from gateway.config.environment import ANY, naming_the_variable, overlay, resolve
from gateway.config.keys_and_types import build, join
from gateway.config.litellm import misplaced, translate, written_as
from gateway.config.removed import drop_removed
from gateway.config.settings import (
    SEEDS,
    Settings,
    fill,
)
from gateway.config.values import ENV_PREFIX, SET_BY, Faults, key_path
from gateway.data_files import read_toml
from gateway.errors import ConfigError
from gateway.hooks import named
from gateway.values import FieldDict, Fields, Texts, frozen
from gateway.wire.coerce import mapping_at

if TYPE_CHECKING:
    import yaml


@frozen
class ConfigFile:
    """The values of a config file."""

    name: str = ""  # as messages call it
    values: FieldDict = field(default_factory=dict)  # by section, as YAML gives them
    lines: Mapping[str, int] = field(default_factory=dict)  # line of each key path, from 1
    repeated: tuple[str, ...] = ()  # faults of keys that are set twice: YAML would use the last

    def located(self, faults: Iterable[str]) -> list[str]:
        """`faults`, in the order of the lines; those of a key in the file name it and the line."""
        lines = [(self._line(fault), fault) for fault in faults]
        return [
            f"{self.name}, line {line}: {fault}" if line else fault
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
    """The file at `path`. Raises ConfigError, with the line: no YAML, or no mapping at its top. An
    empty file may be about to be written; `{}` says that nothing is set."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as exc:
        raise ConfigError(f"{path}: cannot be read: {exc.strerror}") from exc
    except UnicodeDecodeError as exc:
        raise ConfigError(f"{path}: cannot be read: not UTF-8 text: {exc.reason}") from exc
    import yaml  # here and below, because many a command has no file to read

    try:
        return _parsed(str(path), text)
    except yaml.MarkedYAMLError as exc:
        mark = exc.problem_mark
        assert mark is not None  # what is read is text, where every fault has its place
        where = f", line {mark.line + 1}, column {mark.column + 1}"
        # The space: the fault may be at the end of the file, behind the last line.
        if "${" in f"{text} ".splitlines()[mark.line]:
            where += ": a value with ${NAME} stands in quotes there"
        known = read_toml(__package__, "yaml_problems.toml")
        problem = next((ours for theirs, ours in known.items() if theirs in str(exc)), exc.problem)
        began = exc.context_mark
        if began and began.line < mark.line:
            problem = f"{problem}, in what begins in line {began.line + 1}"
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
    import yaml

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
    node: "yaml.Node | None", path: str, seen: set[int], lines: dict[str, int]
) -> "Iterator[tuple[str, yaml.Mark, int]]":
    """Note the line of every key; yields those set twice: (key path, place, first line)."""
    import yaml

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


DEFAULT_FILE = "config.yaml"
CHOSEN_CONFIG: list[str] = []  # `--config FILE`, if this process has one, for printed commands

# Sections that commands which only read the store leave out: they may name missing keys.
_UPSTREAM_KEYS = frozenset(
    {"model_list", "default_upstream", "router", "auth", "embedding"}
    | {"litellm_settings", "router_settings", "general_settings"}
).union(key for key, kind in named("settings").items() if hasattr(kind, "NAMES_KEYS"))


def config_file(given: str | os.PathLike[str] | None, env: Texts = os.environ) -> Path | None:
    """The config file that is read: `given`, or what GATEWAY_CONFIG names, or `./config.yaml`; None
    when there is none."""
    if chosen := given or env.get("GATEWAY_CONFIG"):
        return Path(chosen)
    if Path(DEFAULT_FILE).exists():
        return Path(DEFAULT_FILE)
    return None


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
    chosen = config_file(path, env)
    file = ConfigFile()
    if chosen:
        file = read_config_file(chosen)
    raw: Fields = file.values
    if upstreams is False:
        raw, env = left_out(_UPSTREAM_KEYS, raw, env)
        env.pop("OPENAI_BASE_URL", None)
    if upstreams is None:
        env[ANY] = "unset"
    faults = list(file.repeated)
    try:
        settings = settings_from_dict(raw, env)
    except ConfigError as exc:
        faults += file.located(exc.faults)
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
    # For references that the environment does not set.
    own = mapping_at(raw, "environment_variables").items()
    env = {str(k): str(v) for k, v in own} | dict(env or {})
    if base := env.get("OPENAI_BASE_URL"):
        upstream = merged.setdefault("default_upstream", {})
        if isinstance(upstream, dict):
            upstream.setdefault("api_base", base)
    preset = env.get(f"{ENV_PREFIX}PRESET", merged.get("preset"))
    if preset == "seeds":
        fill(merged, SEEDS, Settings())
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
