"""Texts that a pattern might be slow on, from its own structure."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from re import _constants as codes  # type: ignore[attr-defined]
from re import _parser  # type: ignore[attr-defined]
from typing import Any

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
