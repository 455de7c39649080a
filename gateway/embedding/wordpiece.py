"""BERT's tokenizer for lower-cased text, reduced to token ids without special tokens.

Source: the BERT paper's reference tokenizer (clean, lower-case, strip accents, split at punctuation
and Chinese characters, then the longest known piece from the left).
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping

MAX_WORD_CHARS = 100
"""Longer words are unknown. Source: the reference tokenizer."""
_CACHED_WORDS = 20_000

_ASCII_PUNCTUATION = r"!-/:-@\[-`{-~"
_WORDS = re.compile(rf"[{_ASCII_PUNCTUATION}]|[^\s{_ASCII_PUNCTUATION}]+")
_CHINESE = re.compile(
    "[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0002ceaf\U0002f800-\U0002fa1f]"
)


class WordPiece:
    """Converts texts to token ids; unknown words are left out."""

    def __init__(self, vocabulary: Mapping[str, int]) -> None:
        self._vocabulary = vocabulary
        self._longest = max(map(len, vocabulary), default=0)
        self._words: dict[str, tuple[int, ...]] = {}

    def ids(self, text: str) -> list[int]:
        """The ids of the text's tokens, in order."""
        lowered = text.lower()
        words = _WORDS.findall(lowered if lowered.isascii() else _folded(lowered))
        ids: list[int] = []
        for word in words:
            pieces = self._words.get(word)
            if pieces is None:
                pieces = self._remember(word)
            ids += pieces
        return ids

    def _remember(self, word: str) -> tuple[int, ...]:
        if len(self._words) >= _CACHED_WORDS:
            self._words.clear()
        pieces = self._words[word] = self._pieces(word)
        return pieces

    def _pieces(self, word: str) -> tuple[int, ...]:
        if len(word) > MAX_WORD_CHARS:
            return ()
        ids, start = [], 0
        while start < len(word):
            prefix = "##" if start else ""
            for end in range(min(len(word), start + self._longest), start, -1):
                found = self._vocabulary.get(prefix + word[start:end])
                if found is not None:
                    break
            else:
                return ()
            ids.append(found)
            start = end
        return tuple(ids)


def can_occur(token: str) -> bool:
    """Whether a text can have `token`: not one with punctuation or a Chinese character beside
    others, at which words end, nor one with an accent."""
    text = f"a{token[2:]}" if token.startswith("##") and len(token) > 2 else token
    lowered = text.lower()
    return _WORDS.findall(lowered if lowered.isascii() else _folded(lowered)) == [text]


def _folded(text: str) -> str:
    """Lower-case text without accents and control characters, punctuation set apart."""
    spaced = _CHINESE.sub(r" \g<0> ", text)
    return "".join(map(_character, unicodedata.normalize("NFD", spaced)))


def _character(char: str) -> str:
    if char < "\x7f":
        return char
    category = unicodedata.category(char)
    if category == "Mn" or category in ("Cc", "Cf", "Cn", "Co", "Cs"):
        return ""
    return f" {char} " if category[0] == "P" else char
