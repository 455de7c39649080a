"""The prompt-cache marker that the client's own system prompt gets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gateway.steering.etrace.edits import Message

MAX_BREAKPOINTS = 4
"""Cache markers a request may carry. Source: Anthropic's API reference, prompt caching."""


def system_marker(messages: Sequence[Message], tools: Sequence[Message]) -> dict[str, str] | None:
    """The `cache_control` for the end of the client's system prompt, the first of `messages`.

    None when it has one, is empty, or the client uses all four.
    """
    system = messages[0]
    content = system.get("content")
    if not content:
        return None
    if isinstance(content, str) and isinstance(own := system.get("cache_control"), Mapping):
        return {str(key): str(value) for key, value in own.items()}
    last = content[-1] if isinstance(content, list) else None
    if isinstance(content, list) and (not isinstance(last, Mapping) or "cache_control" in last):
        return None
    markers = [m for message in (*messages, *tools) for m in _markers(message)]
    if len(markers) >= MAX_BREAKPOINTS:
        return None
    # A longer-lived marker may not follow a shorter-lived one: ours lives as long as the longest.
    long_lived = any(isinstance(m, Mapping) and m.get("ttl") == "1h" for m in markers)
    return {"type": "ephemeral", "ttl": "1h"} if long_lived else {"type": "ephemeral"}


def _markers(message: Message) -> list[Any]:
    found = [message["cache_control"]] if message.get("cache_control") else []
    content = message.get("content")
    if isinstance(content, list):
        found += [
            part["cache_control"]
            for part in content
            if isinstance(part, Mapping) and part.get("cache_control")
        ]
    return found
