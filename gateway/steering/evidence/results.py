"""What a call gave, compared without times, ids and line numbers.

Taking those out costs more than all else that is read off a result, and almost every result differs
from the others in something that is none of them. So the parts that are compared stay until another
result has the same of what is never taken out.
"""

from __future__ import annotations

import re

from gateway.steering.evidence.outcomes import without_volatile

HEAD_CHARS = 400
TAIL_CHARS = 600
"""Where times, ids and the like are taken out of a result before it is compared."""

_NAMES_CHARS = 20
"""How far before a number its name is read; see `outcomes`."""
# What is taken out begins with one of these signs, or is a word that may stand before one.
_FIXED = re.compile(r"[^0-9/:=#-]*")
_WORD_SIGNS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
_GOES_ON = tuple("0123456789:=")
"""Signs after which the next line may belong to what is taken out."""


class Result:
    """The result of a call: equal to another where both say the same. Holds within one process.

    `exact`: content, which is compared as it is. `image`: the digest of a picture that belongs to
    it, 0 for none.
    """

    __slots__ = ("_digest", "_key", "_parts")

    def __init__(self, text: str, *, exact: bool = False, image: int = 0) -> None:
        self._parts: tuple[str | int, ...] | None = None
        long = len(text) > HEAD_CHARS + TAIL_CHARS
        if long and not exact:
            head, middle = text[:HEAD_CHARS], hash(text[HEAD_CHARS:-TAIL_CHARS])
            self._key = hash((_fixed(head), middle, image))
            self._parts = (head, middle, text[-TAIL_CHARS:], image)
            return
        self._key = hash((text if long else _fixed(text), image))
        if exact or not text:
            self._digest = hash((text, image))
        else:
            self._parts = (text, image)

    def settle(self) -> None:
        """Keep only a number of the result."""
        if self._parts is not None:
            *parts, image = self._parts
            plain = [without_volatile(p) if isinstance(p, str) else p for p in parts]
            self._digest = hash((*plain, image))
            self._parts = None

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Result) or self._key != other._key:
            return False
        if self._parts is not None and self._parts == other._parts:
            return True
        self.settle()
        other.settle()
        return self._digest == other._digest

    def __hash__(self) -> int:
        return self._key


def _fixed(text: str) -> str:
    """The opening of a text, up to the first line with something that may be taken out; without
    that. Equal for texts that are equal without their volatile parts."""
    found = _FIXED.match(text)
    end = found.end() if found else 0
    start, stop = text.rfind("\n", 0, end) + 1, text.find("\n", end)
    if stop >= 0 and not text.endswith(_GOES_ON, start, stop):
        return text[:start] + without_volatile(text[max(start - _NAMES_CHARS, 0) : stop])
    return text[:end].rstrip(_WORD_SIGNS)
