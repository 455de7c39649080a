"""Embeddings of any provider, through LiteLLM.

LiteLLM takes seconds and 170 MB to import, so `open` imports it, in a thread, only when this
embedder is configured.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from gateway.config.embedding import LITELLM_PREFIX, EmbeddingSettings
from gateway.embedding.base import EmbeddingError, Vector, normalised
from gateway.upstream.litellm_lane.importing import litellm_imported

Call = Callable[..., Awaitable[Any]]
"""`litellm.aembedding`, or a replacement for it."""

PROBE = "dimension probe"


class LiteLLMEmbedder:
    """A provider's embedding model; its id names the model and the dimensions."""

    def __init__(self, settings: EmbeddingSettings, call: Call, dimensions: int) -> None:
        self._settings = settings
        self._call = call
        self.dimensions = dimensions
        self.embedder_id = f"{LITELLM_PREFIX}{settings.model}@{dimensions}"

    @classmethod
    async def open(cls, settings: EmbeddingSettings) -> LiteLLMEmbedder:
        """Import LiteLLM and embed one text, to check the provider and learn the dimensions.

        Raises: EmbeddingError when the provider cannot be reached or refuses.
        """
        call = await asyncio.to_thread(_aembedding)
        vectors = await _embed(call, settings, [PROBE])
        return cls(settings, call, len(vectors[0]))

    async def embed(self, texts: Sequence[str]) -> list[Vector[float]]:
        """One unit vector per text, in order, from one provider call.

        Raises: EmbeddingError; also when the provider changes the dimensions.
        """
        if not texts:
            return []
        vectors = await _embed(self._call, self._settings, texts)
        if any(len(vector) != self.dimensions for vector in vectors):
            raise EmbeddingError(f"{self.embedder_id}: the vectors have other dimensions now")
        return vectors

    async def close(self) -> None:
        """LiteLLM keeps its connections until the process ends."""


def _aembedding() -> Call:
    with litellm_imported() as litellm:
        call: Call = litellm.aembedding
    return call


async def _embed(
    call: Call, settings: EmbeddingSettings, texts: Sequence[str]
) -> list[Vector[float]]:
    optional = {
        "dimensions": settings.dimensions,
        "api_base": settings.api_base,
        "api_key": settings.api_key,
    }
    given = {key: value for key, value in optional.items() if value is not None}
    # Providers refuse empty texts, so a short one is sent instead.
    asked = [text if text.strip() else " ." for text in texts]
    try:
        async with asyncio.timeout(settings.timeout_s):
            response = await call(model=settings.model, input=asked, **given)
        found = sorted(response.data, key=lambda item: item["index"])
        vectors = [normalised(item["embedding"]) for item in found]
    except EmbeddingError:
        raise
    except Exception as error:
        raise EmbeddingError(f"{settings.embedder}: {type(error).__name__}: {error}") from error
    if len(vectors) != len(texts):
        raise EmbeddingError(f"{settings.embedder}: {len(vectors)} vectors for {len(texts)} texts")
    return vectors
