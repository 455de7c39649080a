"""What a call asks for: values that distinguish two calls, and words that may be rephrased.

A search rephrased is the same question; the same form filled in for another person is not. Short
values, numbers and the parts of a short command are names of things: where one differs, another
thing is meant. Longer text is compared by its words.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from gateway.steering.short_cache import remembered
from gateway.steering.word_lists import word_list
from gateway.wire.values import dataclass

MAX_WORDS = 80
"""Words of one call that are compared."""
MAX_CHARS = 800
"""Characters of one call that are looked at."""
MAX_VALUES = 64
"""Values of one call that are looked at."""
NAME_WORDS = 2
"""A value of at most so many words is a name; a longer one is text."""
COMMAND_WORDS = 8
"""A command line of at most so many words is taken word by word."""
STEM = 6
"""Letters of a word that count: "configure" and "configuration" are one."""

_SIZE_KEYS = frozenset(word_list("arguments", "size_keys"))
"""Arguments that say how much, or in words what the others say."""
_NOISE_KEYS = frozenset(word_list("arguments", "noise_keys"))
"""Arguments that are new with each call and ask for nothing."""
_STOP_WORDS = frozenset(word_list("arguments", "stop_words"))
_WORD = re.compile(r"\w+")
_DIGITS = re.compile(r"\d+")
_UNSPACED = re.compile("[\u0e00-\u0e7f\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]{2,}")
"""Scripts written without blanks between words: their letters are compared."""
_PLUMBING = re.compile(
    r"(?:(?<!\s)\s++|)(?:2>&1|\|\s*+(?:head|tail|less|cat|sort)\b[^|;&]*)"
    r"|^\s*cd\s+\S+\s*(?:&&|;)\s*"
)
"""White space is tried once, from its first character on: the search stays linear."""
_PLACE = re.compile(r"\s*+cd\s++(\S++)\s*+(?:&&|;)")
_QUOTES = "\"'`"


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """`identity` digests the names in the arguments, `words` is the vocabulary of all of them."""

    identity: int
    words: frozenset[str]


def read_question(values: Any, raw: str, command: str | None) -> Question:
    """The question of a call with parsed arguments `values` (None: `raw` is no JSON) or a command.

    Never raises. The digest holds within one process.
    """
    names: list[str] = []
    words: list[str] = []
    if command is not None:
        _read_command(command[:MAX_CHARS], names, words)
    elif isinstance(values, dict | list):
        budget = MAX_CHARS
        for at, (key, value) in enumerate(_leaves("", values, 0)):
            if budget <= 0 or at >= MAX_VALUES:
                break
            budget -= len(value)
            _read_value(key, value[: max(budget + len(value), 0)], names, words)
    else:
        _read_value("", raw[:MAX_CHARS], names, words)
    return Question(identity=hash(tuple(sorted(names))), words=frozenset(words[:MAX_WORDS]))


@remembered
def is_noise(key: str) -> bool:
    """Whether an argument of this name only marks the call, such as `trace_id`."""
    return key.lower().replace("-", "_") in _NOISE_KEYS


def _leaves(key: str, value: Any, depth: int) -> Iterator[tuple[str, str]]:
    if depth > 6:
        return
    if isinstance(value, dict):
        for name, inner in value.items():
            if _asks(name):
                yield from _leaves(name, inner, depth + 1)
    elif isinstance(value, list):
        for inner in value:
            yield from _leaves(key, inner, depth + 1)
    elif isinstance(value, str):
        yield key, value
    elif value is not None:
        yield key, repr(value)


@remembered
def _asks(key: str) -> bool:
    return key.lower() not in _SIZE_KEYS and not is_noise(key)


@remembered
def _key_words(key: str) -> tuple[str, ...]:
    return tuple(_WORD.findall(key.lower()))


def _read_value(key: str, value: str, names: list[str], words: list[str]) -> None:
    parts = value.split()
    words.extend(_key_words(key))
    if len(parts) <= NAME_WORDS and (value.isascii() or _UNSPACED.search(value) is None):
        parts = sorted([_plain(part) or part for part in parts])
        names.append(f"{key}={' '.join(parts)}")
        words.extend(parts)
    else:
        names.extend(_DIGITS.findall(value))
        words.extend(text_words(value))


def _read_command(command: str, names: list[str], words: list[str]) -> None:
    place = _PLACE.match(command)
    if place is not None and place[1][:1] != "/":
        names.append(place[1])  # the same command in another directory is another question
    parts = _PLUMBING.sub("", command).split()
    if len(parts) <= COMMAND_WORDS and "\n" not in command.strip():
        plain = [name for part in parts if part[0] != "-" and (name := _plain(part))]
        names.extend(plain)
        words.extend([part for part in plain if not part[:1].isdigit()])
    else:
        names.extend(_DIGITS.findall(command))
        words.extend(text_words(command))


def _plain(part: str) -> str:
    """A name without quotes, without what does not change a path, and without its case."""
    bare = part.strip(_QUOTES).lower()
    if bare in (".", "./") or (len(bare) == 1 and bare.isalpha()):
        return ""
    return bare.removeprefix("./").rstrip("/") or bare


def text_words(text: str) -> list[str]:
    """The words of a text in any script, without the commonest, cut to their stems."""
    words = []
    for word in _WORD.findall(text.lower()):
        if word.isascii():
            if word not in _STOP_WORDS:
                words.append(word[:STEM] if word.isalpha() else word)
        elif _UNSPACED.search(word):
            words.extend(word)
        else:
            words.append(word[:STEM])
    return words


def unspaced_words(text: str) -> list[str]:
    """The letters, in pairs, of what a text has in scripts without blanks between words."""
    return [run[i : i + 2] for run in _UNSPACED.findall(text) for i in range(len(run) - 1)]
