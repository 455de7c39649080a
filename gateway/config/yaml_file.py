"""A config file: its values, and the line of each key."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from gateway.config.environment import SET_BY
from gateway.config.litellm_form import written_as
from gateway.config.schema import join
from gateway.config.values import key_path
from gateway.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigFile:
    """The values of a config file; `lines`: the line of each key path, from 1.

    `repeated`: faults of keys that are set twice, of which YAML would use the last.
    """

    name: str
    values: dict[str, Any] = field(default_factory=dict)
    lines: Mapping[str, int] = field(default_factory=dict)
    repeated: tuple[str, ...] = ()

    def located(self, faults: Iterable[str]) -> list[str]:
        """`faults`, each with the file and the line of its key, in the order of the lines."""
        placed = [(self._line(fault), fault) for fault in faults]
        placed.sort(key=lambda pair: pair[0])
        return [self._placed(line, fault) for line, fault in placed]

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

    def _placed(self, line: int, fault: str) -> str:
        if line:
            return f"{self.name}, line {line}: {fault}"
        return fault if SET_BY in fault else f"{self.name}: {fault}"


def read_config_file(path: str | os.PathLike[str]) -> ConfigFile:
    """The file at `path`, which is YAML with a mapping at its top.

    Raises:
        ConfigError: names the file, and the line of a YAML error. A file without any key is one,
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
    """The values of a config file.

    Raises:
        ConfigError: as for `read_config_file`, and for keys that are set twice.
    """
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
