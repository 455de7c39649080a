"""No pattern of the product costs more than linear time, whatever text a client or model writes."""

from __future__ import annotations

import ast
import functools
import importlib
import pkgutil
import random
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from re import _constants as codes  # type: ignore[attr-defined]
from re import _parser  # type: ignore[attr-defined]
from types import FunctionType, ModuleType
from typing import Any

import pytest

import gateway
import gateway.features.learning.gate as gate
from gateway.wire.response_tee import NamedEnd
from steering_gateway_testing.growth import exceeds_linear

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


MOST = 50
"""Texts for one pattern, chosen at random where its structure gives more."""
SAMPLES = 3  # texts that one pattern is turned into, each with other choices
UNITS: tuple[str, ...] = (
    " ",
    "\n",
    "\t",
    "a",
    "1",
    "A_",
    "\\",
    '"',
    "'",
    "`",
    "/",
    "-",
    "<",
    "[",
    "{",
    "=",
    "a.",
)
UNITS = (*UNITS, "a ", "a\n", "\n ", '"a', "\\'", "a/", "{}", "[]", "\u4e00", "1.", ", ")
ENDINGS = ("", "\x00")
CLASSES = {
    codes.CATEGORY_SPACE: " \n",
    codes.CATEGORY_NOT_SPACE: "a/1",
    codes.CATEGORY_DIGIT: "1",
    codes.CATEGORY_NOT_DIGIT: "a ",
    codes.CATEGORY_WORD: "a1",
    codes.CATEGORY_NOT_WORD: " -",
}


def attacks(pattern: re.Pattern[Any], most: int = MOST) -> Iterator[tuple[str, str, str]]:
    """(opening, what is repeated, ending): texts that make a pattern try and fail.

    most: how many come from the pattern's own structure; with fewer than usual, so many in all,
    chosen among those and the usual units at random, but always the same.
    """
    chance = random.Random(repr(pattern.pattern))
    parsed = _parser.parse(pattern.pattern, pattern.flags & ~re.DEBUG)
    pairs = list(dict.fromkeys(_pairs(parsed, chance)))
    chosen = pairs if len(pairs) <= most else chance.sample(pairs, most)
    texts = [*[("", unit) for unit in UNITS], *chosen]
    for opening, unit in texts if most == MOST else chance.sample(texts, most):
        if unit:
            yield opening, unit, chance.choice(ENDINGS)


def _pairs(parsed: Any, chance: random.Random) -> Iterator[tuple[str, str]]:
    for _ in range(SAMPLES):
        for text in _beginnings(parsed, chance):
            yield "", text
            yield "", text + "\n"
    for before, inside in _repeats(list(parsed), "", chance):
        yield before, inside
        yield "", before + inside


def _beginnings(parsed: Any, chance: random.Random) -> list[str]:
    """What the first parts of a sequence match, for each number of parts, down the tree."""
    texts, before = [], ""
    groups: dict[int, str] = {}
    for op, value in parsed:
        for inner in _children(op, value):
            texts += [before + text for text in _beginnings(inner, chance)]
        before += _sample([(op, value)], chance, groups)
        texts.append(before)
    return texts


def _repeats(parsed: list[Any], before: str, chance: random.Random) -> Iterator[tuple[str, str]]:
    """(what leads to a repetition, what it repeats), down the tree."""
    groups: dict[int, str] = {}
    for op, value in parsed:
        if op in (codes.MAX_REPEAT, codes.MIN_REPEAT, codes.POSSESSIVE_REPEAT):
            for _ in range(2):
                yield before, _sample(value[2], chance, groups)
        for inner in _children(op, value):
            yield from _repeats(list(inner), before, chance)
        before += _sample([(op, value)], chance, groups)


def _children(op: Any, value: Any) -> list[Any]:
    if op in (codes.MAX_REPEAT, codes.MIN_REPEAT, codes.POSSESSIVE_REPEAT):
        return [value[2]]
    if op is codes.SUBPATTERN:
        return [value[3]]
    if op is codes.BRANCH:
        return list(value[1])
    if op is codes.ATOMIC_GROUP:
        return [value]
    return []


def _sample(parsed: Any, chance: random.Random, groups: dict[int, str]) -> str:
    """A text that the sequence matches, look-arounds aside."""
    text = ""
    for op, value in parsed:
        if op is codes.LITERAL:
            text += chr(value)
        elif op is codes.NOT_LITERAL:
            text += "a" if value != ord("a") else "b"
        elif op is codes.ANY:
            text += chance.choice("a ")
        elif op is codes.IN:
            text += _member(value, chance)
        elif op is codes.GROUPREF:
            text += groups.get(value, "")
        elif op in (codes.MAX_REPEAT, codes.MIN_REPEAT, codes.POSSESSIVE_REPEAT):
            least, most, inner = value
            for _ in range(min(max(least, chance.randint(0, 2)), most)):
                text += _sample(inner, chance, groups)
        elif op is codes.SUBPATTERN:
            inner = _sample(value[3], chance, groups)
            if value[0] is not None:
                groups[value[0]] = inner
            text += inner
        elif op is codes.BRANCH:
            text += _sample(chance.choice(value[1]), chance, groups)
        elif op is codes.ATOMIC_GROUP:
            text += _sample(value, chance, groups)
    return text


def _member(members: list[Any], chance: random.Random) -> str:
    """A character of a class; of a negated one, the first common character outside it."""
    negated = members[0][0] is codes.NEGATE
    allowed = []
    for op, value in members[negated:]:
        if op is codes.LITERAL:
            allowed.append(chr(value))
        elif op is codes.RANGE:
            allowed += [chr(value[0]), chr(value[1])]
        elif op is codes.CATEGORY:
            allowed += list(CLASSES[value])
    if not negated:
        return chance.choice(allowed)
    outside = [letter for letter in "a b1\n/\x00" if letter not in allowed]
    return chance.choice(outside[:2])


SIZES = [512, 2048, 8192]
FEW = 1
HELD_AT_RUN_TIME = {"gateway.text.secrets.pattern", "gateway.wire.response_tee.__init__"}
HELD_AT_RUN_TIME |= {"gateway.features.learning.gate.form"}
HELD_AT_RUN_TIME |= {"gateway.features.history.log_places.matches"}  # anchored, of a file's head
HELD_AT_RUN_TIME |= {"gateway.features.client_hooks.answer._fits"}  # fixed texts, one by one
HELD_AT_RUN_TIME |= {"gateway.steering.transcript.client_texts._opening"}  # anchored
HELD_AT_RUN_TIME |= {"gateway.text.sentences._compared", "gateway.text.sentences.says_the_same"}
"""Functions that compile a pattern of fixed form; it is found in the values that hold it."""


def growth(found: Found, most: int = MOST) -> str:
    """Why a pattern is slow on one of its attacks, or nothing."""
    pattern = found.pattern
    binary = isinstance(pattern.pattern, bytes)

    def reader(text: str) -> Callable[[], object]:
        given: Any = text.encode("utf-8", "surrogatepass") if binary else text
        if found.anywhere:
            return lambda: sum(1 for _ in pattern.finditer(given))
        return lambda: (pattern.match(given), pattern.fullmatch(given))

    for opening, unit, ending in attacks(pattern, most):

        def text(size: int, parts: tuple[str, str, str] = (opening, unit, ending)) -> str:
            return parts[0] + parts[1] * (size // len(parts[1])) + parts[2]

        if reason := exceeds_linear(reader, text, SIZES):
            return f"{opening!r} + {unit!r} * n + {ending!r}: {reason}"
    return ""


@pytest.mark.slow
@pytest.mark.parametrize("most", [FEW, pytest.param(MOST, marks=pytest.mark.nightly)])
def test_every_pattern_is_linear_on_hostile_texts(most: int) -> None:
    """No pattern that reads text of clients or models costs more than linear time."""
    slow = {found.place: reason for found in found_patterns() if (reason := growth(found, most))}
    assert not slow


@pytest.mark.slow
def test_patterns_that_the_script_must_find() -> None:
    """Patterns of classes and those made at run time are found, or on the list."""
    found = found_patterns()
    held = {each.pattern.pattern for each in found}
    assert len(found) > 100
    assert NamedEnd("message_stop")._pattern.pattern in held
    assert made_at_run_time() == HELD_AT_RUN_TIME


@pytest.mark.parametrize(
    ("pattern", "anywhere"),
    [
        (r"<{5,}\s*SEARCH\s*\n(.*?)\n?={5,}\s*\n(.*?)\n?>{5,}\s*REPLACE", True),
        (r"\bsed\s+(['\"])s/(.*?)(?<!\\)/(.*?)(?<!\\)/\w*\1\s+(\S+)", True),
        (r"<<-?\s*(\w+)\n(.*?)\n\1\b", True),
        (r"\s*\|", True),
        (r"(?:a|b|ab)*c", False),
        (r"\s*\{?\s*\}?\s*$", False),
    ],
)
def test_slow_patterns_are_noticed(pattern: str, anywhere: bool) -> None:
    """Patterns that are known to be slow are found to be."""
    assert growth(Found("here", re.compile(pattern, re.DOTALL), anywhere))
