"""An embedder without a model: hashes words and letter trigrams into a vector."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator, Sequence

from gateway.embedding.base import Vector, normalised

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
        for feature, weight in _features(text[:MAX_CHARS].lower()):
            code = zlib.crc32(feature.encode("utf-8", "surrogatepass"))
            # One bit of the hash gives the sign, so that collisions cancel out on average.
            values[(code >> 1) % DIMENSIONS] += weight if code & 1 else -weight
        return normalised(values)

    async def close(self) -> None:
        """There is nothing to release."""


def _features(text: str) -> Iterator[tuple[str, float]]:
    for word in _WORD.findall(text):
        yield word, 1.0
        padded = f"^{word}$"
        for start in range(len(padded) - 2):
            yield padded[start : start + 3], 0.3
