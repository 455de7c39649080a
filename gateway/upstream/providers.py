"""Which providers speak OpenAI's wire, and how a model string names its provider.

Source: the provider documentation of each (base URL), and LiteLLM's provider names and key
variables, so that a LiteLLM config means the same here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from gateway.config import OPENAI_API_BASE

DIALECTS = ("chat", "responses", "messages")
"""The wires a client may speak."""

ANTHROPIC_API_BASE = "https://api.anthropic.com"
ANTHROPIC_KEY_VARIABLES = ("ANTHROPIC_API_KEY",)


class Provider(NamedTuple):
    """An OpenAI-compatible API: where it is, and the variables that may hold its key."""

    api_base: str | None
    key_variables: tuple[str, ...]


OPENAI_WIRE: Mapping[str, Provider] = {
    "openai": Provider(OPENAI_API_BASE, ("OPENAI_API_KEY",)),
    "custom_openai": Provider(None, ()),
    "openai_like": Provider(None, ("OPENAI_LIKE_API_KEY",)),
    "hosted_vllm": Provider(None, ("HOSTED_VLLM_API_KEY",)),
    "lm_studio": Provider(None, ("LM_STUDIO_API_KEY",)),
    "llamafile": Provider(None, ("LLAMAFILE_API_KEY",)),
    "deepseek": Provider("https://api.deepseek.com/v1", ("DEEPSEEK_API_KEY",)),
    "groq": Provider("https://api.groq.com/openai/v1", ("GROQ_API_KEY",)),
    "openrouter": Provider("https://openrouter.ai/api/v1", ("OPENROUTER_API_KEY",)),
    "xai": Provider("https://api.x.ai/v1", ("XAI_API_KEY",)),
    "together_ai": Provider(
        "https://api.together.xyz/v1", ("TOGETHERAI_API_KEY", "TOGETHER_AI_API_KEY")
    ),
    "fireworks_ai": Provider(
        "https://api.fireworks.ai/inference/v1", ("FIREWORKS_AI_API_KEY", "FIREWORKS_API_KEY")
    ),
    "cerebras": Provider("https://api.cerebras.ai/v1", ("CEREBRAS_API_KEY",)),
    "nvidia_nim": Provider("https://integrate.api.nvidia.com/v1", ("NVIDIA_NIM_API_KEY",)),
    "litellm_proxy": Provider(None, ("LITELLM_PROXY_API_KEY",)),
}

# Providers whose wire is their own: LiteLLM translates.
FOREIGN_WIRE = frozenset(
    {
        "ai21",
        "anthropic",
        "azure",
        "azure_ai",
        "bedrock",
        "cloudflare",
        "cohere",
        "cohere_chat",
        "databricks",
        "gemini",
        "github",
        "github_copilot",
        "huggingface",
        "mistral",
        "ollama",
        "ollama_chat",
        "perplexity",
        "replicate",
        "sagemaker",
        "sagemaker_chat",
        "vertex_ai",
        "watsonx",
    }
)

# A bare model name that LiteLLM, too, takes for another provider's.
_BARE_PREFIXES = (("claude", "anthropic"), ("gemini", "gemini"))


def split_model(model: str) -> tuple[str | None, str]:
    """`provider/name` or `provider:name` -> (known provider, name); (None, model) for any other."""
    for separator in ("/", ":"):
        provider, found, name = model.partition(separator)
        if found and name and (provider in OPENAI_WIRE or provider in FOREIGN_WIRE):
            return provider, name
    return None, model


def provider_of(params: Mapping[str, Any]) -> tuple[str, str]:
    """(provider, model name at the provider) of a deployment's `litellm_params`."""
    model = str(params["model"])
    explicit = params.get("custom_llm_provider")
    provider, name = split_model(model)
    if explicit:
        return str(explicit), name if provider == explicit else model
    if provider:
        return provider, name
    for prefix, owner in _BARE_PREFIXES:
        if model.startswith(prefix):
            return owner, model
    return "openai", model
