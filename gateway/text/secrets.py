"""The one detector of secrets: what looks like a credential in a text, and the text without it.

It finds tokens by their form and values by the name next to them (`gateway/text/secret_shapes.py`).
A secret that has neither, a word said in conversation, is not found.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from gateway.text.finder import Finder
from gateway.text.secret_shapes import ASSIGNED, SHAPES, Shape, secret_in

MARK = "[masked:"
"""The beginning of what replaces a secret; the kind and a bracket follow."""

MOST_REFUSED = 1000
"""After so many forms in one text that turned out to be none, all that follow count as secrets: a
text made to be slow is masked more, and not looked at for longer."""

_LOWERED_AT_ONCE = 2**17
"""Characters: beyond ASCII a lower-cased letter costs 7 to 14 ns, during which nothing else runs in
the process; 9.5 million in one piece took 70 to 130 ms."""


class SecretSpan(NamedTuple):
    """One secret: characters `start` to `end` of a text, and its kind."""

    start: int
    end: int
    kind: str


def find_secrets(text: str) -> list[SecretSpan]:
    """The secrets of a text in their order, without overlaps. Linear in the length of the text."""
    if not may_have_secrets(text):
        return []
    found = sorted(_found(text))
    joined: list[SecretSpan] = []
    for span in found:
        if joined and span.start < joined[-1].end:
            last = joined[-1]
            kind = span.kind if last.kind == ASSIGNED.kind else last.kind
            joined[-1] = SecretSpan(last.start, max(last.end, span.end), kind)
        else:
            joined.append(span)
    return joined


def mask_secrets(text: str) -> str:
    """The text with `[masked:KIND]` in place of each secret; the same text when there is none.

    Equal secrets of one text and different ones of a kind read alike: what is left says nothing of
    them, not even their length. A masked text is not changed by masking it again.
    """
    found = find_secrets(text)
    if not found:
        return text
    parts, at = [], 0
    for span in found:
        parts += [text[at : span.start], MARK, span.kind, "]"]
        at = span.end
    return "".join([*parts, text[at:]])


@functools.lru_cache(maxsize=512)
def mask_repeated(text: str) -> str:
    """`mask_secrets` for texts that come again with every call, such as guidance."""
    return mask_secrets(text)


def may_have_secrets(text: str) -> bool:
    """False only when `find_secrets` finds nothing, and nothing in any part of the text either: one
    search does for several texts that are joined."""
    return _NEEDED.finds(text if text.isascii() else _lowered(text))


def _lowered(text: str) -> str:
    """The text in small letters, each at its place."""
    if text.isascii():
        return text.lower()
    parts = range(0, len(text), _LOWERED_AT_ONCE)
    return "".join([_lowered_part(text[at : at + _LOWERED_AT_ONCE]) for at in parts])


def _lowered_part(text: str) -> str:
    lowered = text.lower()
    if len(lowered) != len(text):  # one capital letter becomes two characters
        lowered = text.replace("\u0130", "I").lower()
    return lowered


def _found(text: str) -> Iterator[SecretSpan]:
    lowered = _lowered(text)
    yield from _accepted(text, lowered, _rare_candidates(lowered))
    for shape, anchor in _PLAIN:
        if anchor in lowered:
            yield from _accepted(text, lowered, _plain_candidates(lowered, shape, anchor))


def _accepted(
    text: str, lowered: str, candidates: Iterable[tuple[Shape, int]]
) -> Iterator[SecretSpan]:
    """The secrets among places where anchors begin, given in their order."""
    ends: dict[str, int] = {}
    refused = 0
    for shape, at in candidates:
        if at < ends.get(shape.kind, 0):
            continue  # inside of the shape's last match
        match = shape.pattern.match(lowered if shape.folded else text, at)
        if match is None:
            continue
        accepts = shape.accepts if refused < MOST_REFUSED else None
        if accepts is not None and not accepts(text, match):
            refused += 1
            continue
        ends[shape.kind] = match.end()
        yield SecretSpan(*secret_in(match), shape.kind)


def _rare_candidates(lowered: str) -> Iterator[tuple[Shape, int]]:
    for hit in _RARE.finditer(lowered):
        at = hit.start()
        # What the expression found ends where the anchor does, so few anchors come into question.
        for shape, anchor, offset in _ENDING[hit.group()]:
            if lowered.startswith(anchor, at - offset):
                yield shape, at - offset


def _plain_candidates(lowered: str, shape: Shape, anchor: str) -> Iterator[tuple[Shape, int]]:
    at = lowered.find(anchor)
    while at >= 0:
        yield shape, at
        at = lowered.find(anchor, at + len(anchor))


# Most texts have nothing of this, and are not searched further.
_NEEDED = Finder(
    [shape.needs for shape in SHAPES if shape.needs],
    texts=[anchor for shape in SHAPES if not shape.needs for anchor in shape.anchors],
)


# Rarest first: how often letters and signs occur in the development runs. One expression looks for
# all anchors by their rarest letter: a search for each of them costs five times as much.
_LETTERS = "zjxk9vw=_:b-"


def _rarest(anchor: str) -> str:
    return min(anchor, key=lambda letter: f"{_LETTERS}{letter}".index(letter))


_PLAIN = tuple(
    (shape, anchor)
    for shape in SHAPES
    for anchor in shape.anchors
    if _rarest(anchor) not in _LETTERS
)
_BY_LETTER = {
    letter: tuple(
        (shape, anchor, anchor.index(letter))
        for shape in SHAPES
        for anchor in shape.anchors
        if _rarest(anchor) == letter
    )
    for letter in _LETTERS
}


def _endings() -> dict[str, tuple[tuple[Shape, str, int], ...]]:
    """By what the expression can find, from its letter on: the anchors of the letter that go on so,
    or end within it, in their order."""
    found = {a[offset:] for some in _BY_LETTER.values() for _, a, offset in some}
    return {
        text: tuple(
            each
            for each in _BY_LETTER[text[0]]
            if each[1][each[2] :].startswith(text) or text.startswith(each[1][each[2] :])
        )
        for text in found
    }


_ENDING = _endings()


def _around(shape: Shape, anchor: str, letter: str) -> str:
    """The anchor as an expression that begins at its letter."""
    if anchor in shape.narrower:
        return shape.narrower[anchor]
    before, after = anchor[: anchor.index(letter) + 1], anchor[anchor.index(letter) + 1 :]
    return (f"(?<={re.escape(before)})" if len(before) > 1 else "") + re.escape(after)


def _expression(letter: str) -> str:
    """Finder of the anchors of one letter."""
    some = {_around(shape, anchor, letter): "" for shape, anchor, _ in _BY_LETTER[letter]}
    return f"{re.escape(letter)}(?:{'|'.join(some)})"


_RARE = re.compile("|".join([_expression(letter) for letter, some in _BY_LETTER.items() if some]))
