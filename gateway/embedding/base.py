"""Protocol of embedders, hashing, and arithmetic of vectors."""

from __future__ import annotations

import re
import zlib
from array import array
from collections.abc import Iterable, Sequence
from math import isfinite, sqrt
from typing import Protocol, runtime_checkable

from gateway.values import Fields

# One embedding: float32, unit length (all zeros for a text without a known word).
Vector = array  # of "f"


class Spent(Protocol):
    """A call that is counted on budgets."""

    def settle(self, usage: Fields | None) -> None:
        """Note what it used; None when that is not known, empty when it failed."""


class Meter(Protocol):
    """Counts calls to a provider on budgets."""

    async def admit(self, model: str, asked: str, *, answers: bool) -> Spent | None:
        """A call that may be made; None when a budget has not enough left for it."""


class EmbeddingError(Exception):
    """A text could not be embedded: the model files or the provider failed."""


@runtime_checkable
class Embedder(Protocol):
    """Makes vectors whose scalar product is the cosine similarity of their texts. `embedder_id`
    names the vector space: vectors of two ids may never be compared."""

    embedder_id: str  # name of the vector space, including everything it depends on
    dimensions: int  # numbers in one vector

    async def embed(self, texts: Sequence[str]) -> list[Vector[float]]:
        """One vector per text, in order; does not block the event loop. Raises: EmbeddingError."""

    async def close(self) -> None:
        """Release its resources."""


def normalised(values: Iterable[float]) -> Vector[float]:
    """`values` scaled to unit length; zeros stay zeros. Raises: EmbeddingError when a value is not
    finite."""
    vector = array("f", values)
    length = sqrt(sum(value * value for value in vector))
    if not isfinite(length):
        raise EmbeddingError("the vector has values that are not finite")
    if length:
        return array("f", (value / length for value in vector))
    return vector


def similarity(one: Vector[float], other: Vector[float]) -> float:
    """Cosine similarity of two unit vectors, in [-1, 1]. Raises: ValueError when they differ in
    length."""
    product = sum(a * b for a, b in zip(one, other, strict=True))
    return max(-1.0, min(1.0, product))


DIMENSIONS = 256
EMBEDDER_ID = "hashing-256-1"
MAX_CHARS = 4_000
_WORD = re.compile(r"\w+")


class HashingEmbedder:
    """Similarity by shared words and parts of words. For tests, and where no model may be used."""

    embedder_id = EMBEDDER_ID
    dimensions = DIMENSIONS

    async def embed(self, texts: Sequence[str]) -> list[Vector[float]]:
        """One unit vector per text; texts without a word give zeros."""
        return [self.vector(text) for text in texts]

    def vector(self, text: str) -> Vector[float]:
        """The vector of one text; only its first 4,000 characters count."""
        values = [0.0] * DIMENSIONS
        for word in _WORD.findall(text[:MAX_CHARS].lower()):
            parts = (f"^{word}$"[start : start + 3] for start in range(len(word)))
            for feature, weight in ((word, 1.0), *((part, 0.3) for part in parts)):
                code = zlib.crc32(feature.encode("utf-8", "surrogatepass"))
                # One bit of the hash gives the sign, so that collisions cancel out on average.
                values[(code >> 1) % DIMENSIONS] += weight if code & 1 else -weight
        return normalised(values)

    async def close(self) -> None:
        """There is nothing to release."""
