"""Limits of a provider's API for guidance: late system messages, prompt-cache markers."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gateway.core.edits import Message
from gateway.core.guidance_state import Place
from gateway.values import Value

MAX_BREAKPOINTS = 4  # per request. Source: Anthropic's API reference, prompt caching


class GuidanceTarget(Value):
    """The model endpoint a request goes to. With late system messages and breakpoints, a late
    system message is placed alone after a user message, and before an assistant message or at
    the end. Source: Anthropic's documentation, "Mid-conversation system messages"."""

    late_system: bool = False  # it takes system messages after the conversation has begun
    # its prompt cache works with markers in the content, four at most; its system prompt is one
    breakpoints: bool = False
    # places where requests with guidance were refused, and accepted without it
    closed: frozenset[Place] = frozenset()


_AZURE_HOSTS = (".openai.azure.com", ".cognitiveservices.azure.com")


def target_for(provider: str, model: str, host: str) -> GuidanceTarget:
    """The traits of a provider as LiteLLM names it (`openai`, `azure`, `anthropic`, ...). `host`:
    of the deployment's URL, "" for the provider's. Many servers with OpenAI's API refuse a late
    system message, so only OpenAI's and Azure OpenAI's hosts count. Source: the providers' API
    references; chat templates of open models."""
    name = provider.lower()
    at = host.lower()
    if name == "anthropic" or "claude" in model.lower() or at.endswith("anthropic.com"):
        return GuidanceTarget(breakpoints=True)
    openai = at == "api.openai.com" or (name == "openai" and not at)
    azure = at.endswith(_AZURE_HOSTS) or (name == "azure" and not at)
    return GuidanceTarget(late_system=openai or azure)


def system_marker(messages: Sequence[Message], others: Sequence[Message]) -> dict[str, str] | None:
    """Returns the `cache_control` to put at the end of the client's system prompt, the first of
    `messages`. None if the prompt is empty or has a marker, if the client sets no marker
    anywhere, or if it has used all four."""
    system = messages[0]
    content = system.get("content")
    if isinstance(content, list) and content:
        if not isinstance(content[-1], Mapping) or "cache_control" in content[-1]:
            return None
    elif isinstance(content, str) and isinstance(own := system.get("cache_control"), Mapping):
        return {str(key): str(value) for key, value in own.items()} if content else None
    markers = [m for each in (*messages, *others) for m in _markers(each)]
    if not content or not 0 < len(markers) < MAX_BREAKPOINTS:
        return None  # a client that sets no marks pays for none
    # A longer-lived marker may not follow a shorter-lived one: ours lives as long as the longest.
    long_lived = any(isinstance(m, Mapping) and m.get("ttl") == "1h" for m in markers)
    return {"type": "ephemeral", "ttl": "1h"} if long_lived else {"type": "ephemeral"}


def _markers(value: Any) -> Iterator[Any]:
    """The markers in a message or tool, those of the blocks in a tool's result included."""
    for each in value if isinstance(value, (list, tuple)) else (value,):
        if isinstance(each, Mapping):
            if each.get("cache_control"):
                yield each["cache_control"]
            yield from _markers(each.get("content"))
