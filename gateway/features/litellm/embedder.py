"""Embeddings of any provider, through LiteLLM.

LiteLLM takes seconds and 170 MB to import, so `open` imports it, in a thread, only when this
embedder is configured."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from gateway.config.embedding import LITELLM_PREFIX, EmbeddingSettings
from gateway.embedding.base import EmbeddingError, Meter, Vector, normalised
from gateway.errors import UnknownProvider
from gateway.features.litellm.sdk import litellm_imported
from gateway.tasks import loading
from gateway.upstream.providers import BASELESS, OPENAI_COMPATIBLE, provider_of
from gateway.values import Fields, Texts

Call = Callable[..., Awaitable[Any]]  # `litellm.aembedding`, or a replacement for it

PROBE = "dimension probe"


class LiteLLMEmbedder:
    """A provider's embedding model; its id names the model and the dimensions."""

    def __init__(
        self, settings: EmbeddingSettings, call: Call, dimensions: int, meter: Meter | None = None
    ):
        self._settings = settings
        self._meter = meter
        self._call = call
        self.dimensions = dimensions
        self.embedder_id = f"{LITELLM_PREFIX}{settings.model}@{dimensions}"

    @classmethod
    async def open(cls, settings: EmbeddingSettings, meter: Meter | None = None) -> LiteLLMEmbedder:
        """Import LiteLLM and embed one text, to check the provider and learn the dimensions.
        Raises: EmbeddingError when the provider cannot be reached or refuses."""
        _refuse_foreign_key(settings, os.environ)
        call = await loading(_aembedding)
        vectors, _ = await _embed(call, settings, [PROBE])
        return cls(settings, call, len(vectors[0]), meter)

    async def embed(self, texts: Sequence[str]) -> list[Vector[float]]:
        """One unit vector per text, in order, from one provider call. Raises: EmbeddingError; also
        when the provider changes the dimensions, and when a budget has not enough left."""
        if not texts:
            return []
        if self._meter is None:
            vectors, _ = await _embed(self._call, self._settings, texts)
        else:
            asked = "\n".join(texts)
            spent = await self._meter.admit(self._settings.model, asked, answers=False)
            if spent is None:
                raise EmbeddingError(f"{self.embedder_id}: a budget is used up")
            usage: Fields | None = {}
            try:
                vectors, usage = await _embed(self._call, self._settings, texts)
            finally:
                spent.settle(usage)
        if any(len(vector) != self.dimensions for vector in vectors):
            raise EmbeddingError(f"{self.embedder_id}: the vectors have other dimensions now")
        return vectors

    async def close(self) -> None:
        """LiteLLM keeps its connections until the process ends."""


def _refuse_foreign_key(settings: EmbeddingSettings, env: Texts) -> None:
    """Refuse a provider for which LiteLLM would use another one's key or address. Raises:
    EmbeddingError: it has no address, or no key while LiteLLM finds OpenAI's."""
    try:
        provider, _ = provider_of({"model": settings.model, "api_base": settings.api_base})
    except UnknownProvider as error:
        raise EmbeddingError(f"{settings.embedder}: {error.message}") from error
    name = provider.upper()
    if provider in BASELESS and not (settings.api_base or env.get(f"{name}_API_BASE")):
        raise EmbeddingError(f"{settings.embedder}: {provider!r} needs embedding.api_base")
    known = OPENAI_COMPATIBLE.get(provider)
    if known:
        variables = (*known.key_variables, f"{name}_API_KEY")
    else:
        variables = ()
    given = settings.api_key or settings.api_base or any(env.get(each) for each in variables)
    if known and not given:
        raise EmbeddingError(f"{settings.embedder}: there is no key: set embedding.api_key")


def _aembedding() -> Call:
    with litellm_imported() as litellm:
        call: Call = litellm.aembedding
    return call


async def _embed(
    call: Call, settings: EmbeddingSettings, texts: Sequence[str]
) -> tuple[list[Vector[float]], Fields | None]:
    """The vectors, and the usage that the provider reports."""
    optional = {name: getattr(settings, name) for name in ("dimensions", "api_base", "api_key")}
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
    usage = getattr(response, "usage", None)
    return vectors, dict(usage) if usage else None
