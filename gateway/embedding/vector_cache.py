"""Vectors that were made a short while ago, so that no text is sent to a model twice."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

from cachetools import LRUCache

from gateway.embedding.base import Embedder, Vector


class CachedEmbedder:
    """Wraps an embedder with a least-recently-used cache keyed by the text's digest. A text that
    occurs twice in one call, or again in a retry, is embedded once."""

    def __init__(self, inner: Embedder, entries: int):
        self._inner = inner
        self._vectors: LRUCache[bytes, Vector[float]] = LRUCache(entries)
        self.embedder_id = inner.embedder_id
        self.dimensions = inner.dimensions

    async def embed(self, texts: Sequence[str]) -> list[Vector[float]]:
        """One vector per text, in order; only texts not in the cache are embedded."""
        encoded = (text.encode("utf-8", "surrogatepass") for text in texts)
        keys = [blake2b(text, digest_size=16).digest() for text in encoded]
        known = {key: self._vectors[key] for key in keys if key in self._vectors}
        missing = {key: text for key, text in zip(keys, texts, strict=True) if key not in known}
        if missing:
            vectors = await self._inner.embed(list(missing.values()))
            known |= dict(zip(missing, vectors, strict=True))
        for key in dict.fromkeys(keys):
            self._vectors[key] = known[key]
        return [known[key] for key in keys]

    async def close(self) -> None:
        """Clear the cache and close the wrapped embedder."""
        self._vectors.clear()
        await self._inner.close()
