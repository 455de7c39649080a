"""An embedder with a cache of the most recent texts."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Sequence

from gateway.embedding.base import Embedder, Vector


class CachedEmbedder:
    """Wraps an embedder with a least-recently-used cache keyed by the text's digest.

    A text that occurs twice in one call, or again in a retry, is embedded once.
    """

    def __init__(self, inner: Embedder, entries: int) -> None:
        self._inner = inner
        self._entries = entries
        self._vectors: OrderedDict[bytes, Vector[float]] = OrderedDict()

    @property
    def embedder_id(self) -> str:
        return self._inner.embedder_id

    @property
    def dimensions(self) -> int:
        return self._inner.dimensions

    async def embed(self, texts: Sequence[str]) -> list[Vector[float]]:
        """One vector per text, in order; only texts not in the cache are embedded."""
        keys = [_digest(text) for text in texts]
        known = {key: self._vectors[key] for key in keys if key in self._vectors}
        missing = {key: text for key, text in zip(keys, texts, strict=True) if key not in known}
        if missing:
            vectors = await self._inner.embed(list(missing.values()))
            known |= dict(zip(missing, vectors, strict=True))
        for key in dict.fromkeys(keys):
            self._vectors[key] = known[key]
            self._vectors.move_to_end(key)
        while len(self._vectors) > self._entries:
            self._vectors.popitem(last=False)
        return [known[key] for key in keys]

    async def close(self) -> None:
        """Clear the cache and close the wrapped embedder."""
        self._vectors.clear()
        await self._inner.close()


def _digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
