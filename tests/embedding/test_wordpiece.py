"""The tokenizer agrees with the reference tokenizer of the model it was made for."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import gateway.embedding.static
from gateway.embedding.static import WordPiece

VOCABULARY = (
    (Path(gateway.embedding.static.__file__).parent / "model" / "vocab.txt")
    .read_text(encoding="utf-8")
    .split("\n")[:-1]
)
TOKENS = WordPiece({token: index for index, token in enumerate(VOCABULARY)})


def pieces(text: str) -> list[str]:
    return [VOCABULARY[index] for index in TOKENS.ids(text)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        ("Café naïve — 中文 x²", ["cafe", "naive", "—", "中", "文", "x", "##²"]),
        ("don't self.foo_bar()", ["don", "'", "t", "self", ".", "foo", "_", "bar", "(", ")"]),
        ("zero\u200bwidth\u00ad soft", ["zero", "##wi", "##dt", "##h", "soft"]),
        ("AssertionError", ["assertion", "##er", "##ror"]),
        ("x" * 101, []),
        ("a\tb\r\nc", ["a", "b", "c"]),
    ],
)
def test_pieces_are_those_of_the_reference_tokenizer(text: str, expected: list[str]) -> None:
    """Recorded from the model's own tokenizer, unknown words left out."""
    assert pieces(text) == expected


@given(st.text(max_size=200))
def test_pieces_join_to_words_of_the_text(text: str) -> None:
    """No text raises, ids are in range, and asking again (from the cache) gives the same."""
    ids = TOKENS.ids(text)
    assert all(0 <= index < len(VOCABULARY) for index in ids)
    assert TOKENS.ids(text) == ids


def test_a_flood_of_new_words_does_not_grow_the_cache_for_ever() -> None:
    """The words remembered stay bounded."""
    tokens = WordPiece({"a": 0})
    for number in range(25_000):
        tokens.ids(f"word{number}")
    assert len(tokens._words) <= 20_000


def test_every_token_can_occur() -> None:
    """The table has no row that no text asks for: each costs the wheel 170 bytes."""
    script = Path(__file__).parents[2] / "scripts" / "distill_embedder.py"
    can_occur = runpy.run_path(str(script))["can_occur"]
    assert [token for token in VOCABULARY if not can_occur(token)] == []
    assert not any(map(can_occur, ["...", "##!", "##中", "café", "Word"]))
    assert all(map(can_occur, ["!", "中", "word", "##ing", "##²"]))
