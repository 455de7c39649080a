"""Words of the ledger for people: a text on one line, and ordinal numbers."""

LABEL_CHARS = 70
"""Longest name of an object."""


def quoted(text: str) -> str:
    """A text on one line, cut, between backticks."""
    plain = " ".join(text[: 4 * LABEL_CHARS].split()).replace("`", "'")
    if len(plain) > LABEL_CHARS:
        plain = plain[: LABEL_CHARS - 3].rstrip() + "..."
    return f"`{plain}`"


def ordinal(number: int) -> str:
    """A number as first, second, ..., 11th."""
    if number <= len(_ORDINALS):
        return _ORDINALS[number - 1]
    ending = "th" if number % 100 in (11, 12, 13) else _ENDINGS.get(number % 10, "th")
    return f"{number}{ending}"


_ORDINALS = (
    "first",
    "second",
    "third",
    "fourth",
    "fifth",
    "sixth",
    "seventh",
    "eighth",
    "ninth",
    "tenth",
)
_ENDINGS = {1: "st", 2: "nd", 3: "rd"}
