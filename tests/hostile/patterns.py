"""Every regular expression of the product, found by script, with the methods it is used by."""

from __future__ import annotations

import ast
import functools
import importlib
import pkgutil
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import gateway
import gateway.features.learning.gate as gate

ROOT = Path(gateway.__file__).parent
# The scripted agent and provider read only what the demonstration sends.
EXCLUDED = ("gateway.config", "gateway.features.demo", "gateway.__main__")
METHODS = ("search", "match", "fullmatch", "finditer", "findall", "split", "sub", "subn")
ANYWHERE = ("search", "finditer")


@dataclass(frozen=True, slots=True)
class Found:
    """A pattern, the place it is from, and whether it is tried at every position of a text."""

    place: str
    pattern: re.Pattern[Any]
    anywhere: bool


@functools.cache
def modules() -> tuple[ModuleType, ...]:
    """The product's modules, imported."""
    names = [each.name for each in pkgutil.walk_packages(gateway.__path__, "gateway.")]
    return tuple(importlib.import_module(n) for n in names if not n.startswith(EXCLUDED))


@functools.lru_cache(maxsize=1)
def tree(module: ModuleType) -> ast.Module:
    """The parsed source of a module. Only the last is kept: all of them take 110 MB."""
    assert module.__file__ is not None
    return ast.parse(Path(module.__file__).read_text())


@functools.cache
def found_patterns() -> list[Found]:
    """Patterns that modules, classes and closures hold, and those written inside functions."""
    found: dict[tuple[str | bytes, int, bool], Found] = {}
    for module in modules():
        for each in (*_held(module), *_written(module), *_of_language(module)):
            key = (each.pattern.pattern, each.pattern.flags, each.anywhere)
            found.setdefault(key, each)
    return list(found.values())


def _of_language(module: ModuleType) -> Iterator[Found]:
    """The forms in `language.toml`."""
    if module is gate:
        for name in gate.language()["forms"]:
            yield Found(f"language.toml: {name}", gate.form(name), True)


def made_at_run_time() -> set[str]:
    """Functions that compile what is no literal: module.function."""
    names = set()
    for module in modules():
        for function in ast.walk(tree(module)):
            if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            for call in _re_calls(function):
                if not isinstance(call.args[0], ast.Constant):
                    names.add(f"{module.__name__}.{function.name}")
    return names


def _held(module: ModuleType) -> Iterator[Found]:
    for name, value in vars(module).items():
        defined = isinstance(value, type | FunctionType)
        if defined and value.__module__ != module.__name__:  # an import
            continue
        for pattern in _inside(value, 0):
            yield Found(f"{module.__name__}.{name}", pattern, _is_anywhere(module, name))


def _inside(value: object, depth: int) -> Iterator[re.Pattern[Any]]:
    if depth > 4:
        return
    parts: list[object] = []
    if isinstance(value, re.Pattern):
        yield value
    elif isinstance(value, Mapping):
        parts = [*value, *value.values()]
    elif isinstance(value, list | tuple | set | frozenset):
        parts = list(value)
    elif isinstance(value, FunctionType):
        cells = value.__closure__ or ()
        parts = [*[cell.cell_contents for cell in cells], *(value.__defaults__ or ())]
    elif isinstance(value, type):
        parts = list(vars(value).values())
    elif isinstance(value, functools.partial):
        parts = [value.func, *value.args, *value.keywords.values()]
    elif type(value).__module__.startswith("gateway."):
        names = [*getattr(value, "__slots__", ()), *getattr(value, "__dict__", ())]
        parts = [getattr(value, name, None) for name in names]
    for part in parts:
        yield from _inside(part, depth + 1)


def _is_anywhere(module: ModuleType, name: str) -> bool:
    """Whether a module searches with its pattern `name`; assumed where it is not seen used."""
    used = _used(module)[name]
    return not used or bool(used - {"match", "fullmatch"})


@functools.cache
def _used(module: ModuleType) -> defaultdict[str, set[str]]:
    """The methods of patterns that a module calls on each of its names."""
    used: defaultdict[str, set[str]] = defaultdict(set)
    for node in ast.walk(tree(module)):
        if (
            isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.attr in METHODS
        ):
            used[node.value.id].add(node.attr)
    return used


def _written(module: ModuleType) -> Iterator[Found]:
    for call in _re_calls(tree(module)):
        literal = call.args[0]
        assert isinstance(call.func, ast.Attribute)
        if isinstance(literal, ast.Constant) and call.func.attr != "compile":
            anywhere = call.func.attr not in ("match", "fullmatch")
            yield Found(f"{module.__name__}:{call.lineno}", re.compile(literal.value), anywhere)


def _re_calls(node: ast.AST) -> Iterator[ast.Call]:
    for each in ast.walk(node):
        if (
            isinstance(each, ast.Call)
            and isinstance(each.func, ast.Attribute)
            and isinstance(each.func.value, ast.Name)
            and each.func.value.id == "re"
            and each.func.attr in ("compile", *METHODS)
        ):
            yield each
