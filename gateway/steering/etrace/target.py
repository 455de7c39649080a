"""What a provider's wire allows for guidance."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The model endpoint a request goes to.

    `late_system` = it takes system messages after the conversation has begun; `breakpoints` = its
    prompt cache works with markers in the content (four at most), and its system prompt is one.
    With both, a late system message stands behind a user message, alone, and before an assistant
    message or nothing. Source: Anthropic's documentation, "Mid-conversation system messages".
    """

    late_system: bool = False
    breakpoints: bool = False


_AZURE_HOSTS = (".openai.azure.com", ".cognitiveservices.azure.com")


def target_for(provider: str, model: str = "", host: str = "") -> Target:
    """The traits of a provider as LiteLLM names it (`openai`, `azure`, `anthropic`, ...).

    `host` is that of the deployment's URL, empty for the provider's own: many servers speak
    OpenAI's wire and refuse a late system message, so only OpenAI's and Azure OpenAI's hosts count.
    Source: the providers' API references; chat templates of open models that raise on a system
    message which is not the first.
    """
    name, at = provider.lower(), host.lower()
    if name == "anthropic" or "claude" in model.lower() or at.endswith("anthropic.com"):
        return Target(breakpoints=True)
    openai = at == "api.openai.com" or (name == "openai" and not at)
    azure = at.endswith(_AZURE_HOSTS) or (name == "azure" and not at)
    return Target(late_system=openai or azure)
