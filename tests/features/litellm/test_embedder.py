"""Embeddings of providers: how they are reached, refused and paid."""

from __future__ import annotations

import asyncio
import math
import subprocess
import sys
from typing import Any

import pytest

from gateway.budget_interface import OwnCall, OwnCalls
from gateway.embedding import EmbeddingError, EmbeddingSettings, open_embedder
from gateway.features.litellm.embedder import LiteLLMEmbedder
from steering_gateway_testing import Reply, ScriptedUpstream, Usage, closed_port
from steering_gateway_testing.patience import ANSWER_S

MODEL = "text-embedding-3-small"
READ = 10_000


def test_importing_the_module_loads_neither_numpy_nor_litellm() -> None:
    """Only the opened embedder takes memory."""
    code = (
        "import sys, gateway.features.litellm.embedder;"
        "sys.exit(any(name in sys.modules for name in ('numpy', 'litellm')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.usefixtures("litellm_clients")
async def test_a_provider_model_is_reached_through_litellm(upstream: ScriptedUpstream) -> None:
    """Vectors come from the provider in order, unit length, under an id with their dimensions."""
    settings = EmbeddingSettings(
        embedder="litellm/openai/text-embedding-3-small",
        api_base=upstream.base_url,
        api_key="sk-test",
        dimensions=16,
        timeout_s=ANSWER_S,
    )
    embedder = await open_embedder(settings)
    one, empty, again = await embedder.embed(["one", "", "one"])
    assert embedder.embedder_id == "litellm/openai/text-embedding-3-small@16"
    assert len(one) == len(empty) == embedder.dimensions == 16
    assert one == again
    assert math.hypot(*one) == pytest.approx(1.0, abs=1e-4)
    await embedder.close()
    # LiteLLM's logging worker holds callbacks until the loop has run once more.
    await asyncio.sleep(0)


async def test_an_unreachable_provider_is_named_at_the_start() -> None:
    """Opening fails with EmbeddingError, not with the client library's own error."""
    settings = EmbeddingSettings(
        embedder="litellm/openai/x",
        api_base=f"http://127.0.0.1:{closed_port()}/v1",
        api_key="k",
        timeout_s=ANSWER_S,
    )
    with pytest.raises(EmbeddingError, match="litellm/openai/x"):
        await open_embedder(settings)


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("hosted_vllm/bge", "needs embedding.api_base"),
        ("lm_studio/bge", "needs embedding.api_base"),
        ("together_ai/bge", "there is no key"),
        ("nobody/bge", "not a known provider"),
    ],
)
async def test_no_key_of_another_provider_is_used(
    monkeypatch: pytest.MonkeyPatch, model: str, said: str
) -> None:
    """LiteLLM would ask OpenAI's host, or with OpenAI's key; it is not even imported."""
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-openai")
    monkeypatch.setenv("LM_STUDIO_API_KEY", "key-of-the-studio")
    with pytest.raises(EmbeddingError, match=said):
        await open_embedder(EmbeddingSettings(embedder=f"litellm/{model}"))


@pytest.mark.usefixtures("litellm_clients")
async def test_embeddings_of_the_gateway_s_own_count(upstream: ScriptedUpstream) -> None:
    """Each call to a provider is admitted and settled with what it reports, or fails."""

    class Seen(OwnCall):
        def settle(self, usage: Any) -> None:
            settled.append(dict(usage))

    class Meter(OwnCalls):
        async def admit(self, model: str, asked: str, **_: Any) -> OwnCall | None:
            admitted.append((model, asked))
            return Seen() if len(admitted) < 2 else None

    settled: list[dict[str, Any]] = []
    admitted: list[tuple[str, str]] = []
    upstream.default = Reply(usage=Usage(prompt_tokens=READ))
    settings = EmbeddingSettings(
        embedder=f"litellm/openai/{MODEL}",
        api_base=upstream.base_url,
        api_key="sk-test",
        timeout_s=ANSWER_S,
    )
    embedder = await LiteLLMEmbedder.open(settings, Meter())
    await embedder.embed(["one", "two"])
    with pytest.raises(EmbeddingError, match="budget"):
        await embedder.embed(["three"])
    assert admitted == [(f"openai/{MODEL}", "one\ntwo"), (f"openai/{MODEL}", "three")]
    assert [each["prompt_tokens"] for each in settled] == [READ]
    await embedder.close()
