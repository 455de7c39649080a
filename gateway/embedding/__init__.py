"""Text to vector: the built-in static model, any provider's through LiteLLM, and hashing."""

from __future__ import annotations

import asyncio

from gateway.embedding.base import Embedder, EmbeddingError, Vector
from gateway.embedding.settings import EmbeddingSettings

__all__ = ["Embedder", "EmbeddingError", "EmbeddingSettings", "Vector", "open_embedder"]


async def open_embedder(settings: EmbeddingSettings) -> Embedder:
    """The configured embedder, loaded and with its cache; the event loop stays free meanwhile.

    Raises: EmbeddingError when the model cannot be read or the provider cannot be reached.
    """
    embedder = await _open(settings)
    if not settings.cache_entries:
        return embedder
    from gateway.embedding.cache import CachedEmbedder

    return CachedEmbedder(embedder, settings.cache_entries)


async def _open(settings: EmbeddingSettings) -> Embedder:
    # Each is imported only when it is the configured one: numpy and LiteLLM cost memory.
    if settings.embedder == "hashing":
        from gateway.embedding.hashing import HashingEmbedder

        return HashingEmbedder()
    if settings.embedder == "static":
        from gateway.embedding.static import StaticEmbedder

        return await asyncio.to_thread(StaticEmbedder.load)
    from gateway.embedding.litellm import LiteLLMEmbedder

    return await LiteLLMEmbedder.open(settings)
