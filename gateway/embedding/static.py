"""The built-in embedder: a table of token vectors, averaged.

Distilled from all-MiniLM-L6-v2 by `scripts/distill_embedder.py`; the licences are in the folder of
the data. The table is memory-mapped, so only the rows in use take memory."""

from __future__ import annotations

import re
import unicodedata
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from gateway.embedding.base import EmbeddingError, Vector
from gateway.errors import in_words
from gateway.tasks import off_loop

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

MAX_WORD_CHARS = 100  # longer words are unknown. Source: the reference tokenizer.
_CACHED_WORDS = 20_000
_ASCII_PUNCTUATION = r"!-/:-@\[-`{-~"
_WORDS = re.compile(rf"[{_ASCII_PUNCTUATION}]|[^\s{_ASCII_PUNCTUATION}]+")
_CHINESE = re.compile(
    "[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0002ceaf\U0002f800-\U0002fa1f]"
)


class WordPiece:
    """Converts texts to token ids; unknown words are left out."""

    def __init__(self, vocabulary: Mapping[str, int]):
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
                if len(self._words) >= _CACHED_WORDS:
                    self._words.clear()
                pieces = self._words[word] = self._pieces(word)
            ids += pieces
        return ids

    def _pieces(self, word: str) -> tuple[int, ...]:
        if len(word) > MAX_WORD_CHARS:
            return ()
        ids = []
        start = 0
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


def _folded(text: str) -> str:
    """Lower-case text without accents and control characters, punctuation set apart."""
    spaced = _CHINESE.sub(r" \g<0> ", text)
    return "".join(map(_character, unicodedata.normalize("NFD", spaced)))


def _character(char: str) -> str:
    category = ""
    if char >= "\x7f":
        category = unicodedata.category(char)
    if category in ("Mn", "Cc", "Cf", "Cn", "Co", "Cs"):
        return ""
    if category[:1] == "P":
        return f" {char} "
    return char


EMBEDDER_ID = "static-minilm-256-1"
DIMENSIONS = 256
# Characters of a text that are embedded; the rest is ignored. Keeps a query under 1 ms.
MAX_CHARS = 4_000
# Characters embedded on the event loop: under 0.2 ms, less than a thread switch costs.
_INLINE_CHARS = 400
_MODEL = Path(__file__).parent / "model"


@dataclass(eq=False)
class StaticEmbedder:
    """Vectors of 256 dimensions, in well under a millisecond per text. Thread-safe."""

    embedder_id = EMBEDDER_ID
    dimensions = DIMENSIONS

    tokens: WordPiece  # splits a text into known word pieces
    rows: NDArray[np.int8]  # one vector for each word piece, scaled to whole numbers
    scales: NDArray[np.float32]  # factor of each row
    centre: NDArray[np.float32]  # mean vector, taken off so that unlike texts come out unlike

    @classmethod
    def load(cls, folder: Path = _MODEL) -> StaticEmbedder:
        """Load the embedder in about 0.1 s, most of it the import of numpy; embedders of a process
        share what was read. Raises: EmbeddingError when a file is missing or damaged."""
        return cls(*_read_model(folder))

    async def embed(self, texts: Sequence[str]) -> list[Vector[float]]:
        """One unit vector per text; texts without a known word give zeros."""
        if sum(map(len, texts)) <= _INLINE_CHARS:
            return self.vectors(texts)
        return await off_loop(self.vectors, texts)

    def vectors(self, texts: Sequence[str]) -> list[Vector[float]]:
        """The vectors of `texts`, computed in the calling thread."""
        return [self._vector(text) for text in texts]

    def _vector(self, text: str) -> Vector[float]:
        ids = self.tokens.ids(text[:MAX_CHARS])
        if not ids:
            return array("f", bytes(4 * DIMENSIONS))
        total = self.scales[ids] @ self.rows[ids].astype("f4")
        # Subtract what all texts of agents have in common: the similarity of unrelated texts falls
        # from about 0.7 to about 0.2.
        return array("f", _unit(_unit(total) - self.centre).tobytes())

    async def close(self) -> None:
        """The memory mapping is released with the object."""


@cache
def _read_model(
    folder: Path,
) -> tuple[WordPiece, NDArray[np.int8], NDArray[np.float32], NDArray[np.float32]]:
    import numpy as np

    try:
        vocabulary = (folder / "vocab.txt").read_text(encoding="utf-8").split("\n")[:-1]
        rows = np.load(folder / "rows.npy", mmap_mode="r", allow_pickle=False)
        scales = np.load(folder / "scales.npy", allow_pickle=False).astype(np.float32)
        centre = np.load(folder / "centre.npy", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise EmbeddingError(
            f"the static model in {folder} cannot be read: {in_words(error)}"
        ) from error
    shapes = (rows.shape, scales.shape, centre.shape)
    if shapes != ((len(vocabulary), DIMENSIONS), (len(vocabulary),), (DIMENSIONS,)):
        raise EmbeddingError(f"the files of the static model in {folder} do not fit together")
    words = {token: index for index, token in enumerate(vocabulary)}
    return WordPiece(words), rows, scales, centre


def _unit(vector: NDArray[np.float32]) -> NDArray[np.float32]:
    length = vector.dtype.type(float(vector @ vector) ** 0.5)
    if length:
        return vector / length
    return vector
