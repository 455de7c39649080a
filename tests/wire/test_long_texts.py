"""Long texts in pieces give what the text gives as a whole."""

from __future__ import annotations

import random

import pytest

from gateway.wire import coerce
from gateway.wire.coerce import lowered, word_count

# A letter of several letters in lower case, one whose lower case depends on its neighbours, spaces
# of several kinds, and characters outside of the first plane.
_ALPHABET = "aBÄ\N{LATIN CAPITAL LETTER I WITH DOT ABOVE}ß \n\t\N{NO-BREAK SPACE}\N{EM SPACE}😀"
_SIGMA = "\N{GREEK CAPITAL LETTER SIGMA}"


@pytest.mark.parametrize("letters", [_ALPHABET, _ALPHABET + _SIGMA, "aB \n", " ", "ÄB"])
def test_pieces_give_what_the_whole_gives(monkeypatch: pytest.MonkeyPatch, letters: str) -> None:
    """Wherever the cuts fall: in a word, between two, or among spaces."""
    monkeypatch.setattr(coerce, "PIECE_CHARACTERS", 3)
    draw = random.Random(5)
    for length in range(40):
        for _ in range(20):
            text = "".join(draw.choices(letters, k=length))
            assert lowered(text) == text.lower()
            assert word_count(text) == len(text.split())


def test_a_text_of_several_real_pieces() -> None:
    """Of the size that is used."""
    text = "Än Wort " * (3 * coerce.PIECE_CHARACTERS // 8)
    assert lowered(text) == text.lower()
    assert word_count(text) == len(text.split())
