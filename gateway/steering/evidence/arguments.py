"""Arguments of a call: values that distinguish two calls, and words that may be rephrased.

A rephrased search is the same question; the same form for another person is not. Short values,
numbers and parts of short commands are names: a different name means another thing. Longer text is
compared by its words; in queries, programs and long commands every word may be a name."""

import re
from collections.abc import Iterator
from itertools import islice, repeat
from typing import Any

from gateway.core import step
from gateway.core.short_cache import remembered
from gateway.steering.word_lists import word_list
from gateway.values import FieldDict

MAX_WORDS = 80  # words of one call that are compared
MAX_CHARS = 800
MAX_VALUES = 64
DEEPEST = 6  # of the arguments that are read
NAME_WORDS = 2  # words of the longest value that is a name
COMMAND_WORDS = 8  # words of the longest command line that is taken word by word
STEM = 6  # letters of a word that count: "configure" and "configuration" are one

_SIZE_KEYS = frozenset(word_list("arguments", "size_keys"))  # how much, or the others in words
_NOISE_KEYS = frozenset(word_list("arguments", "noise_keys"))  # new with each call, ask for nothing
_STOP_WORDS = frozenset(word_list("arguments", "stop_words"))
_WORD = re.compile(r"\w+")
_DIGITS = re.compile(r"\d+")
# Scripts without blanks between words: their letters are compared.
_UNSPACED = re.compile("[\u0e00-\u0e7f\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]{2,}")
_PLUMBING = re.compile(
    r"(?:(?<!\s)\s++|)(?:2>&1|\|\s*+(?:head|tail|less|cat|sort)\b[^|;&]*)"
    r"|^\s*cd\s+\S+\s*(?:&&|;)\s*"
)  # white space is tried once, from its first character on: the search stays linear
_SIGN = re.compile(r"[=<>{}\[\];]|\w\(")
_SQL = re.compile(
    r"\s*+(?:select|insert|update|delete|with)\b[^;]{0,400}?\b(?:from|into|set)\b", re.IGNORECASE
)
_TABLE = re.compile(r"\b(?:from|join|into|update|table)\s+([\w.\"]{1,80})", re.IGNORECASE)
MAX_OBJECTS = 16  # files, hosts and tables of one call that are compared
WORDS_PER_SIGN = 6  # words per sign up to which a text is a program
_PLACE = re.compile(r"\s*+cd\s++(\S++)\s*+(?:&&|;)")
_QUOTES = "\"'`"


class CallArguments:
    """Arguments of a call, read when it is first compared with another: most calls never are. Long
    ones are read at once, so that they are not held until then. `values` are the parsed arguments
    (None: `raw` is no JSON), `command` the command line that a shell runs. Reading never raises."""

    __slots__ = ("_asked", "_formal", "_formal_words", "_identity", "_named", "_words")

    def __init__(self, values: Any, raw: str, command: str | None):
        self._asked: tuple[Any, str, str | None] | None = (values, raw, command)
        self._formal: list[str] = []
        self._formal_words: frozenset[str] | None = None
        # Tiny values take ten times as much memory as their text: so long a text that of the least
        # transcript (`_LEAST_BYTES` in `gateway/conversations/known_prefixes.py`).
        if len(raw) > 2**14:
            self._read(values, raw, command)

    @property
    def identity(self) -> int:
        """Digest of the names in the arguments; holds within one process."""
        if self._asked is not None:
            self._read(*self._asked)
        return self._identity

    @property
    def words(self) -> frozenset[str]:
        """The vocabulary of all arguments, at most MAX_WORDS words."""
        if self._asked is not None:
            self._read(*self._asked)
        return self._words

    @property
    def objects(self) -> frozenset[str]:
        """The files, hosts, ids and tables among the arguments."""
        if self._asked is not None:
            self._read(*self._asked)
        formal, parts = self._named
        named = [
            _plain(part)
            for part in parts
            if ("/" in part or "." in part or ":" in part) and ">" not in part
        ]
        named += [table.lower() for table in _TABLE.findall(formal)]
        return frozenset(named[:MAX_OBJECTS])

    def is_like(self, other: step.CallArguments) -> bool:
        """True if the names are equal and the formal words of one include those of the other."""
        if self.identity != other.identity:
            return False
        own = self.formal_words
        others = other.formal_words
        return own <= others or others <= own

    @property
    def formal_words(self) -> frozenset[str]:
        """The words of the queries, programs and long commands in the arguments, when these have
        been read."""
        if self._formal_words is None:
            self._formal_words = frozenset(_WORD.findall(" ".join(self._formal).lower()))
            self._formal = []
        return self._formal_words

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, CallArguments) or self.identity != other.identity:
            return False
        return self.words == other.words

    def __hash__(self) -> int:
        return self.identity

    def _read(self, values: Any, raw: str, command: str | None) -> None:
        names: list[str] = []
        words: list[str] = []
        if command is not None:
            self._formal = _read_command(command[:MAX_CHARS], names, words)
        elif isinstance(values, dict | list):
            budget = MAX_CHARS
            for key, value in islice(_leaves("", values, 1), MAX_VALUES):
                if budget <= 0:
                    break
                text = value[:budget]
                if _read_value(key, text, names, words=words) and is_formal(text):
                    self._formal.append(text)
                budget -= len(value)
        elif _read_value("", raw[:MAX_CHARS], names, words=words) and is_formal(raw[:MAX_CHARS]):
            self._formal.append(raw[:MAX_CHARS])
        if command is None:
            self._named = " ".join(self._formal), words
        else:
            formal = command[:MAX_CHARS]
            self._named = formal, formal.split()
        names.sort()
        self._identity = hash(tuple(names))
        self._words = frozenset(words[:MAX_WORDS])
        self._asked = None


@remembered
def is_noise(key: str) -> bool:
    """True for an argument that only marks the call, such as `trace_id`."""
    return key.lower().replace("-", "_") in _NOISE_KEYS


def _leaves(key: str, values: FieldDict | list[Any], depth: int) -> Iterator[tuple[str, str]]:
    """The values `depth` levels deep and below, as texts; each with its key."""
    named = isinstance(values, dict)
    for name, value in values.items() if isinstance(values, dict) else zip(repeat(key), values):
        if named and not _asks(name):
            continue
        if isinstance(value, str):
            yield name, value
        elif isinstance(value, dict | list):
            if depth < DEEPEST:
                yield from _leaves(name, value, depth + 1)
        elif value is not None:
            yield name, repr(value)


@remembered
def _asks(key: str) -> bool:
    return key.lower() not in _SIZE_KEYS and not is_noise(key)


@remembered
def _key_words(key: str) -> tuple[str, ...]:
    return tuple(_WORD.findall(key.lower()))


def is_formal(text: str) -> bool:
    """True for a query or a program, by its signs or its words; not prose."""
    signs = len(_SIGN.findall(text))
    return signs * WORDS_PER_SIGN >= len(text.split()) or _SQL.match(text) is not None


def _read_value(key: str, value: str, names: list[str], words: list[str]) -> bool:
    """Read a value; True if it is text."""
    parts = value.split()
    words += _key_words(key)
    if len(parts) <= NAME_WORDS and (value.isascii() or _UNSPACED.search(value) is None):
        parts = sorted([_plain(part) or part for part in parts])
        names.append(f"{key}={' '.join(parts)}")
        words += parts
        return False
    names += _DIGITS.findall(value)
    words += text_words(value)
    return True


def may_have_plumbing(command: str) -> bool:
    """False if there is no pipe, redirection or leading `cd` to remove; much quicker than that."""
    return "|" in command or "2>&1" in command or command.lstrip().startswith("cd")


def _read_command(command: str, names: list[str], words: list[str]) -> list[str]:
    """Read a command line; its parts without options where not each of them counts as a name."""
    bare = command
    if may_have_plumbing(command):
        place = _PLACE.match(command)
        if place is not None and place[1][:1] != "/":
            names.append(place[1])  # the same command in another directory is another question
        bare = _PLUMBING.sub("", command)
    parts = bare.split()
    if len(parts) <= COMMAND_WORDS and "\n" not in command.strip():
        plain = [name for part in parts if part[0] != "-" and (name := _plain(part))]
        names.extend(plain)
        words.extend([part for part in plain if not part[:1].isdigit()])
        return []
    names.extend(_DIGITS.findall(command))
    words.extend(text_words(command))
    return [part for part in parts if part[0] != "-"]


def _plain(part: str) -> str:
    """A name in lower case, without quotes and redundant parts of a path."""
    bare = part.strip(_QUOTES).lower()
    if bare in (".", "./") or (len(bare) == 1 and bare.isalpha()):
        return ""
    return bare.removeprefix("./").rstrip("/") or bare


def text_words(text: str) -> list[str]:
    """The words of a text in any script, without the commonest, cut to their stems."""
    found = [word for word in _WORD.findall(text.lower()) if word not in _STOP_WORDS]
    if text.isascii():
        return [word[:STEM] if word.isalpha() else word for word in found]
    words = []
    for word in found:
        if not word.isascii() and _UNSPACED.search(word):
            words.extend(word)
        else:
            words.append(word[:STEM] if word.isalpha() or not word.isascii() else word)
    return words


def unspaced_words(text: str) -> list[str]:
    """The letters, in pairs, of what a text has in scripts without blanks between words."""
    return [run[i : i + 2] for run in _UNSPACED.findall(text) for i in range(len(run) - 1)]
