"""The one gate that every text of a lesson passes before it can be advice. Pure.

Lessons are read off texts of people, models and tools. Such a text may carry data of one task,
or an order that does harm. `refusal` says why a text is refused, and whether it may be given if
a person approves exactly this text."""

import re
from collections.abc import Collection
from functools import cache, lru_cache

from gateway.data_files import read_toml
from gateway.text.secrets import MARK, find_secrets
from gateway.values import Fields

MOST_WORDS = 25  # of one instruction. Source: `learning.md`, "The gate"
MOST_CHARS = 600  # of a text that an operator wrote


@cache
def language() -> Fields:
    """The tables of `language.toml`, read once."""
    return read_toml(__package__, "language.toml")


@cache
def form(name: str) -> re.Pattern[str]:
    """A form of sentences, without regard to case."""
    return re.compile("".join(language()["forms"][name]), re.IGNORECASE)


@cache
def vocabulary(name: str) -> frozenset[str]:
    """A list of words."""
    words = language()["words"][name]
    return frozenset(words.split() if isinstance(words, str) else words)


_CLAUSE = re.compile(r"[,;.:!?]\s+|(?<!\s)\s++(?:and|then|but)\s+")
_TICKED = re.compile(r"`([^`]{0,200})`")
_WORD = re.compile(r"[^\s,;:!?()\"\u201c\u201d]+")
_VALUE = re.compile(r"\d|[/_\\@#=<>{}\[\]|$~^*]|\w\.\w|[a-z][A-Z]|::|\(\)|^--?\w")
_NAME = re.compile(r"[A-Z][a-z]")
_SENTENCE = re.compile(r"(?:^|[.!?:]\s+)[\"'`(]*$")
_PARTS = re.compile(r"[^A-Za-z0-9]+|(?<=[a-z])(?=[A-Z])")


def refusal(text: str, *, known: Collection[str] = (), approved: bool = False) -> str:
    """Returns the reason why a text may not be advice; "" if it may. `known`: names and values
    that the agent's own tools declare, and that thus belong to no single task. `approved`: a
    person wrote or approved this very text; that allows orders and values, but never a
    credential or the marks of a frame."""
    if not text.strip() or not text.isprintable():
        return "it is empty or has control characters"
    if MARK in text or find_secrets(text):  # one that was masked before, too
        return "it holds what looks like a credential"
    if form("frames").search(text):
        return "it holds a mark of the gateway's own frames"
    if approved:
        if len(text) > MOST_CHARS:
            return f"it has over {MOST_CHARS} characters"
        return ""
    if len(text.split()) > MOST_WORDS:
        return f"it has more than {MOST_WORDS} words"
    if form("address").search(text) or form("orders").search(f"{text} {_spelled(text)}"):
        return "it holds an address or an order against the user"
    if value := _value(text, frozenset(known)):
        return f"{value!r} may be of one task"
    if does_harm(text):
        return "it does what needs a person's approval"
    return ""


@lru_cache(maxsize=4096)
def does_harm(text: str) -> bool:
    """Whether a text asks for what installs, fetches, deletes, publishes, overrides or skips a
    check; one that keeps from such an act does not. Names in ticks are read by their parts, too."""
    named = _spelled(text)
    ticked = _spelled(text, "`")
    keeps = form("keeps_from")
    if form("unchecked").search(named) or form("steps").match(ticked):
        return True
    spelled = (text.replace("`", ""), named, ticked)
    for clause in (part for each in spelled for part in _CLAUSE.split(each)):
        if form("leaves_out").search(clause) and not form("negated").match(clause):
            return True
        if not keeps.match(clause) and form("acts").search(keeps.split(clause)[0]):
            return True
    return False


def _spelled(text: str, tick: str = "") -> str:
    return _TICKED.sub(lambda found: f"{tick}{' '.join(_PARTS.split(found[1]))}{tick}", text)


def _value(text: str, known: frozenset[str]) -> str:
    """The first word that may be a value of one task: a number, path, identifier or name."""
    if name := strange(text, " ".join(known)):
        return name
    bare = _TICKED.sub(lambda found: " " * len(found[0]), text)
    for found in _WORD.finditer(bare):
        word = found[0].strip("'.")
        if word in known or word in vocabulary("names"):
            continue
        opens = _SENTENCE.search(bare[: found.start()]) is not None
        if _VALUE.search(word) or (_NAME.match(word) and not opens):
            return word
    return ""


def strange(text: str, own: str = "") -> str:
    """The first name in ticks that is another run's: neither made of parts of `own`, what the run
    that would be given the text knows, nor of words that belong to no task; "" for none."""
    known = vocabulary("plain") | {part.lower() for part in _PARTS.split(own) if part}
    for name in " ".join(_TICKED.findall(text)).split():
        for word in re.findall(r"\w+", name):
            parts = [part.lower().rstrip("0123456789") for part in _PARTS.split(word) if part]
            met = [part in known or part.removesuffix("s") in known for part in parts]
            if not (word.isascii() and parts and all(met)):
                return name
    return ""
