"""Near misses: a name that is one letter away from one seen in the run, a quote left open.

All of it reads bounded texts once, from left to right.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from gateway.steering.word_lists import word_lists

TEXT_CHARS = 4_000
"""Characters of one text in which names are looked for."""
MAX_NAMES = 600
"""Names seen that a wrong one is compared with."""
LEAST_CHARS = 5
"""Shorter names are near too many others."""
LEAST_LETTERS = 4
"""Names with fewer letters are versions and numbers, which are near each other by nature."""
QUOTED_COMMAND_CHARS = 8_000

_NAME = re.compile(r"(?<![\w./@#~-])[\w./@#~-]{4,160}+")
_MARKS = "'\"`"
_LANGUAGES = word_lists("languages")


def names_in(text: str) -> list[str]:
    """Paths, file names and ids in a text: words with a sign or a digit in them, in order."""
    found = dict.fromkeys(
        name.strip(".-") for name in _NAME.findall(text[:TEXT_CHARS]) if not name.isalpha()
    )
    return [name for name in found if len(name) >= LEAST_CHARS]


def near_name(wanted: Iterable[str], seen: Iterable[str]) -> tuple[str, str] | None:
    """A wanted name that was never seen, and the seen one that it may stand for.

    That is one that differs in one letter, or one that ends in the same directory and file name.
    """
    known = dict.fromkeys(list(seen)[:MAX_NAMES])
    lowered = {name.rstrip("/") for name in known}
    missing = [name for name in wanted if name.rstrip("/") not in lowered]
    for name in missing:
        for other in known:
            if _one_letter_apart(name, other):
                return name, other
    for name in missing:
        end = name.strip("./").split("/")[-2:]
        if "." in end[-1] and len(end[-1]) >= LEAST_CHARS:
            for other in known:
                if "/" in other and other.split("/")[-len(end) :] == end:
                    return name, other
    return None


def other_language(text: str, names: Iterable[str]) -> tuple[str, str] | None:
    """A file among the names, and the ending of the language that a text for it seems to be in.

    None unless the text has the marks of one language, and of none that the file's ending stands
    for.
    """
    begun = text[:TEXT_CHARS]
    spoken = [ending for ending, marks in _LANGUAGES.items() if any(m in begun for m in marks)]
    if len(spoken) != 1:
        return None
    for name in names:
        ending = name.rpartition(".")[2]
        if ending in _LANGUAGES:
            return None if ending == spoken[0] else (name, spoken[0])
    return None


def open_quote(command: str) -> str:
    """The quotation mark that a command leaves open, "" when each is closed."""
    inside, escaped = "", False
    for char in command[:QUOTED_COMMAND_CHARS]:
        if escaped:
            escaped = False
        elif char == "\\" and inside != "'":
            escaped = True
        elif inside:
            inside = "" if char == inside else inside
        elif char in _MARKS:
            inside = char
    return inside


def _one_letter_apart(a: str, b: str) -> bool:
    """Whether one letter is changed, added, left out, or swapped with the next one."""
    if abs(len(a) - len(b)) > 1 or a == b or sum(map(str.isalpha, a)) < LEAST_LETTERS:
        return False
    at = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), None)
    if at is None:  # one is the other with a letter more
        return not max(a, b, key=len)[-1].isdigit()
    rest_a, rest_b = a[at:], b[at:]
    if (rest_a[0] + rest_b[0]).isdigit():
        return False  # page2 and page3 are two names
    if rest_a[1:] == rest_b[1:] or rest_a[1:] == rest_b or rest_a == rest_b[1:]:
        return True
    return rest_a[:2] == rest_b[1::-1] and rest_a[2:] == rest_b[2:]
