"""Token counts estimated from texts, where a provider reports none. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from gateway.wire.coerce import as_list, as_mapping, as_text

BYTES_PER_TOKEN = 4
"""The usual rule of thumb for English text and code."""

ATTACHED_TOKENS = 1600
"""Tokens that an image costs, roughly and whatever its size in bytes.

Source: Anthropic's documentation, "Vision".
"""

# An attached file, as chat and Responses write it in URLs, and Messages and audio parts by itself.
_ENCODED = re.compile(rb';base64,[A-Za-z0-9+/=\\]+|"data"\s*:\s*"[A-Za-z0-9+/\\]{100,}={0,2}"')


def body_tokens(raw: bytes) -> int:
    """About how many input tokens a request body has; attached files count as images."""
    text, attached = _ENCODED.subn(b"", raw)
    return len(text) // BYTES_PER_TOKEN + attached * ATTACHED_TOKENS


def estimated_usage(raw: bytes, completion: Mapping[str, Any]) -> dict[str, Any] | None:
    """A `usage` object for a request body and its answer; None for an answer without a message."""
    choices = [as_mapping(choice) for choice in as_list(completion.get("choices"))]
    messages = [as_mapping(choice["message"]) for choice in choices if choice.get("message")]
    if not messages:
        return None
    written = sum(len(text.encode("utf-8", "replace")) for m in messages for text in _texts(m))
    output = -(-written // BYTES_PER_TOKEN)
    tokens = body_tokens(raw)
    return {"prompt_tokens": tokens, "completion_tokens": output, "total_tokens": tokens + output}


def _texts(message: Mapping[str, Any]) -> Iterator[str]:
    """The texts of a reply, its calls included."""
    for key in ("content", "reasoning_content", "refusal"):
        yield as_text(message.get(key), "")
    for part in as_list(message.get("content")):
        yield as_text(as_mapping(part).get("text"), "")
    called = [as_mapping(call).get("function") for call in as_list(message.get("tool_calls"))]
    for function in [*called, message.get("function_call")]:
        for key in ("name", "arguments"):
            yield as_text(as_mapping(function).get(key), "")
