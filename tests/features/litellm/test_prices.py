"""Costs agree with those that LiteLLM works out itself."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.features.litellm import sdk
from gateway.upstream.model_costs import capabilities


def listed_cost(model: str, usage: dict[str, Any]) -> float | None:
    """What a call of `model` costs by the list in the installed LiteLLM."""
    info = capabilities(model)
    return None if info is None else info.cost(usage)


@pytest.mark.parametrize(
    "model", ["claude-sonnet-4-5", "gpt-4o", "gemini/gemini-2.5-pro", "deepseek/deepseek-chat"]
)
def test_costs_agree_with_litellms_own(model: str) -> None:
    """The same usage costs what LiteLLM's calculator says, cache and long prompts included."""
    sdk.load()  # imports LiteLLM without its look-ups in the network
    import litellm
    from litellm.types.utils import PromptTokensDetailsWrapper, Usage

    for prompt, cached in ((1000, 0), (1000, 900), (300_000, 1000)):
        details = PromptTokensDetailsWrapper(cached_tokens=cached)
        usage = Usage(
            prompt_tokens=prompt,
            completion_tokens=50,
            total_tokens=prompt + 50,
            prompt_tokens_details=details,
        )
        theirs = litellm.cost_per_token(model=model, usage_object=usage)
        ours = listed_cost(model, usage.model_dump())
        assert ours == pytest.approx(sum(theirs))


@pytest.mark.parametrize("tier", ["default", "priority", "flex"])
@pytest.mark.parametrize("model", ["gpt-5.4", "gpt-5-mini", "o4-mini"])
def test_classes_of_service_agree_with_litellms_own(model: str, tier: str) -> None:
    """The tiers of OpenAI, cached tokens included."""
    sdk.load()
    import litellm
    from litellm.types.utils import PromptTokensDetailsWrapper, Usage

    details = PromptTokensDetailsWrapper(cached_tokens=300)
    counts = {"prompt_tokens": 1000, "completion_tokens": 50, "total_tokens": 1050}
    usage = Usage(**counts, prompt_tokens_details=details)
    theirs = litellm.cost_per_token(model=model, usage_object=usage, service_tier=tier)
    ours = listed_cost(model, {**usage.model_dump(), "service_tier": tier})
    assert ours == pytest.approx(sum(theirs))
