"""Names of models in front of an upstream that the operator named: each arrives as it was sent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest

from gateway.dialects import CHAT, MESSAGES
from steering_gateway_testing import ScriptedUpstream
from tests.relay.test_deployments import a_table, only

NAMES = (  # OpenRouter's list of models, and the price list and provider pages of LiteLLM
    "openai/gpt-4o",
    "openai/gpt-5-codex",
    "openai/gpt-oss-120b:free",
    "anthropic/claude-sonnet-4.5",
    "anthropic/claude-opus-4-7",
    "anthropic:claude-sonnet-4-5",
    "google/gemini-2.5-pro",
    "gemini/gemini-2.5-flash",
    "vertex_ai/claude-sonnet-4-5@20250929",
    "bedrock/us.anthropic.claude-opus-4-7",
    "bedrock/converse/anthropic.claude-3-5-sonnet-20241022-v2:0",
    "azure/gpt-4.1",
    "azure_ai/mistral-large-latest",
    "deepseek/deepseek-chat",
    "deepseek/deepseek-r1:free",
    "cohere/command-r-plus",
    "mistral/mistral-large-latest",
    "mistralai/mistral-nemo",
    "groq/llama-3.3-70b-versatile",
    "xai/grok-4",
    "x-ai/grok-4-fast",
    "together_ai/meta-llama/Llama-3.3-70B-Instruct-Turbo",
    "fireworks_ai/accounts/fireworks/models/kimi-k2-instruct",
    "ollama/llama3.1:8b",
    "perplexity/sonar-pro",
    "openrouter/auto",
    "openrouter/anthropic/claude-sonnet-4.5",
)
BODIES: dict[str, dict[str, Any]] = {
    "/chat/completions": {"messages": [{"role": "user", "content": "hi"}]},
    "/responses": {"input": "hi"},
    "/messages": {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 9},
}
KEYED = {"auth": {"gateway_keys": {"team": "gw-a-key-of-this-gateway-0"}}}


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("settings", [{}, KEYED], ids=["open", "with keys"])
def test_each_arrives_unchanged(
    upstream: ScriptedUpstream,
    relay: Callable[..., httpx.Client],
    monkeypatch: pytest.MonkeyPatch,
    settings: dict[str, Any],
    path: str,
) -> None:
    """27 names with the prefixes of providers, in each dialect, once each; a provider's key in the
    environment changes nothing."""
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-ant-api03-not-to-be-spent")
    headers = {"x-gateway-key": "gw-a-key-of-this-gateway-0", "authorization": "Bearer sk-mine"}
    client = relay(settings, headers=headers)
    for name in NAMES:
        assert client.post(path, json={"model": name, **BODIES[path]}).status_code == 200
    arrived = [(request.path, request.model) for request in upstream.requests]
    assert arrived == [("/v1" + path, name) for name in NAMES]
    assert not [r for r in upstream.requests if "not-to-be-spent" in str(r.headers)]


def test_prefixes_choose_a_provider_at_openai_and_where_the_operator_says_so() -> None:
    """`null` is OpenAI's own host and no other; `true` is any upstream, `false` none."""
    for base, setting, chosen in (
        ("https://api.openai.com/v1", None, True),
        ("https://eu.api.openai.com/v1", None, True),
        ("https://notopenai.com/v1", None, False),
        ("https://openrouter.ai/api/v1", None, False),
        ("https://openrouter.ai/api/v1", True, True),
        ("https://api.openai.com/v1", False, False),
    ):
        upstream = {"api_base": base, "provider_prefixes": setting}
        found = only(a_table(default_upstream=upstream), "deepseek/deepseek-chat")
        assert (found.name == "prefixed", found.model is not None) == (chosen, chosen), base


def test_a_route_of_the_config_goes_the_same_way(
    upstream: ScriptedUpstream, relay: Callable[..., httpx.Client]
) -> None:
    """A fallback without a deployment is asked of the named upstream by its whole name."""
    broken = {"model": "openai/x", "api_base": "http://127.0.0.1:9/v1"}
    client = relay(
        {
            "model_list": [{"model_name": "m", "litellm_params": broken}],
            "router": {"num_retries": 0, "fallbacks": [{"m": ["anthropic/claude-x"]}]},
        }
    )
    body = {"model": "m", **BODIES["/chat/completions"]}
    assert client.post("/chat/completions", json=body).status_code == 200
    assert upstream.last.model == "anthropic/claude-x"


def test_a_base_for_messages_alone_is_named_as_well() -> None:
    """With `messages_api_base` before OpenAI's own host, names of Messages are that server's."""
    table = a_table(default_upstream={"messages_api_base": "http://claude.example"})
    assert table.keeps_names(MESSAGES)
    assert not table.keeps_names(CHAT)
