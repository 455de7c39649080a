"""Sentences that people type, and whether two of them have nearly the same words."""

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

from gateway.data_files import read_toml

SHARED_WORDS = 2  # fewest content words of the shorter sentence, numbers not counted
# Lowest share of the longer sentence's content words that the shorter one has. Both were chosen on
# the sentences of one team: no two that say something else should be joined.
SHARED_PART = 0.5

ENGLISH = (
    0.2  # share of common words: English prose has nearly twice that, German and Spanish a tenth
)

_TABLE = read_toml(__package__, "sentence_words.toml")
_COMMON = frozenset(_TABLE["common"].split())
_DENIES = re.compile(_TABLE["denies"], re.VERBOSE)
_ORDERS = re.compile(_TABLE["denies"] + _TABLE["orders"], re.VERBOSE)
_ELSEWHERE = re.compile(_TABLE["elsewhere"])
_ENDS = re.compile(_TABLE["ends"])
_WORD = re.compile(_TABLE["word"])


class _Words(NamedTuple):
    every: list[str]  # in lower case
    content: list[str]  # those that carry meaning, each once
    denies: bool  # it forbids or denies something
    ordered: bool  # it says something else when its words change places


def sentences(text: str) -> list[str]:
    """The sentences and lines of a text, as they stand there."""
    return [part.strip() for part in _ENDS.split(text) if part.strip()]


def nearly_equal(one: str, other: str) -> bool:
    """True if two sentences have the same words; or if all content words of the shorter one, at
    least two, are in the longer one, are at least half of its content words, and both or neither
    deny something. If one has a word such as `before` or `not`, the order must be the same, too.
    No stems and no synonyms are known: "use tabs" is not "use spaces"."""
    short, long = sorted((_words(one), _words(other)), key=lambda each: len(each.content))
    if short.every == long.every:
        return bool(short.every)
    named = sum(any(map(str.isalpha, word)) for word in short.content)
    if named < SHARED_WORDS or len(short.content) < SHARED_PART * len(long.content):
        return False
    if short.ordered or long.ordered:
        shared = [word for word in long.content if word in short.content]
        return short.denies == long.denies and shared == short.content
    return set(short.content) <= set(long.content)


def says_the_same(line: str, sentence: str) -> bool:
    """True if a line has the words of a sentence, in their order and no other: but for greetings
    and articles, other ways to write the same (a table), and a reason that it leaves out."""
    return _compared(line) in (
        _compared(sentence),
        _compared(re.sub(_TABLE["reason"], "", sentence)),
    )


def _compared(sentence: str) -> list[str]:
    flat = sentence.casefold().replace("\u2019", "'").strip()
    for form, same in _TABLE["equal"]:
        flat = re.sub(form, same, flat)
    return list(map(singular, _words(flat).every))


def content_words(sentence: str) -> tuple[str, ...]:
    """The words of a sentence that carry meaning, in lower case, each once: no numbers, and none of
    the common words of other languages."""
    return tuple(word for word in _words(sentence).content if not _ELSEWHERE.fullmatch(word))


def meaning(sentence: str) -> tuple[frozenset[str], bool]:
    """The words of a sentence that are not common and deny nothing, without the ending of a plural;
    and whether it denies or forbids something."""
    found = _words(sentence)
    own = [word.replace("'", "") for word in found.every if not _DENIES.search(word)]
    return frozenset(singular(word) for word in own if word not in _COMMON), found.denies


def singular(word: str) -> str:
    """The word without the ending of a plural."""
    return word.removesuffix("s") if len(word) > 2 else word


def is_english(texts: Iterable[str]) -> bool:
    """True if at least a fifth of the words are common English ones, or if there are none."""
    words = [word for text in texts for word in _words(text).every]
    return sum(word in _COMMON for word in words) >= ENGLISH * len(words)


@lru_cache(maxsize=20_000)
def _words(sentence: str) -> _Words:
    flat = sentence.casefold().replace("\u2019", "'")
    every = [found[1] or found[0] for found in _WORD.finditer(flat)]
    known = dict.fromkeys(w for w in every if w.replace("'", "") not in _COMMON)
    return _Words(
        every=every,
        content=[word for word in known if not _ORDERS.fullmatch(word)],
        denies=_DENIES.search(flat) is not None,
        ordered=_ORDERS.search(flat) is not None,
    )
