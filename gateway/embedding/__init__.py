"""Text to vector: the built-in static model, any provider's through LiteLLM, and hashing.

Imports allowed: `gateway.errors`; numpy and LiteLLM only inside the module that needs them."""

from gateway.config.embedding import EmbeddingSettings
from gateway.embedding.base import Embedder, EmbeddingError, Meter, Vector
from gateway.hooks import given
from gateway.tasks import loading
from gateway.upstream.litellm_package import WITHOUT_LITELLM, can_translate


async def open_embedder(settings: EmbeddingSettings, meter: Meter | None = None) -> Embedder:
    """The configured embedder with its cache; `meter` counts what a provider's embeddings use.
    Raises: EmbeddingError when the model cannot be read or the provider cannot be reached."""
    embedder = await _open(settings, meter)
    if not settings.cache_entries:
        return embedder
    from gateway.embedding.vector_cache import CachedEmbedder

    return CachedEmbedder(embedder, settings.cache_entries)


async def _open(settings: EmbeddingSettings, meter: Meter | None) -> Embedder:
    # Only the configured one is imported: numpy and LiteLLM take much memory.
    if settings.embedder == "hashing":
        from gateway.embedding.base import HashingEmbedder

        return HashingEmbedder()
    if settings.embedder == "static":
        from gateway.embedding.static import StaticEmbedder

        return await loading(StaticEmbedder.load)
    if not can_translate():
        raise EmbeddingError(f"{settings.embedder}: {WITHOUT_LITELLM}")
    (embedder,) = given("embedder")
    opened: Embedder = await embedder.open(settings, meter)
    return opened
