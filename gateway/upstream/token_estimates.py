"""Tokens estimated from bytes: of a body with its images and files, and of an answer."""

import re
from collections.abc import Iterator

from gateway.values import FieldDict, Fields
from gateway.wire.coerce import as_mapping, list_at, mappings_at, text_at

BYTES_PER_TOKEN = 4  # the usual rule of thumb for English text and code

# Tokens that an image costs, roughly. Source: Anthropic's documentation, "Vision".
ATTACHED_TOKENS = 1600
# An attached file, as chat and Responses write it in URLs, and Messages and audio parts by itself.
_ENCODED = re.compile(rb';base64,[A-Za-z0-9+/=\\]+|"data"\s*:\s*"[A-Za-z0-9+/\\]{100,}={0,2}"')


def body_tokens(raw: bytes) -> int:
    """About how many input tokens a request body has; attached files count as images. The text is
    searched only if files may be in it."""
    if b";base64," not in raw and b'"data"' not in raw:
        return len(raw) // BYTES_PER_TOKEN
    text, attached = _ENCODED.subn(b"", raw)
    return len(text) // BYTES_PER_TOKEN + attached * ATTACHED_TOKENS


def estimated_usage(raw: bytes, completion: Fields) -> FieldDict | None:
    """A `usage` object for a request body and its answer; None for an answer without a message."""
    choices = mappings_at(completion, "choices")
    messages = [as_mapping(choice["message"]) for choice in choices if choice.get("message")]
    if not messages:
        return None
    written = sum(len(text.encode("utf-8", "replace")) for m in messages for text in _texts(m))
    output = -(-written // BYTES_PER_TOKEN)
    tokens = body_tokens(raw)
    return {"prompt_tokens": tokens, "completion_tokens": output, "total_tokens": tokens + output}


def _texts(message: Fields) -> Iterator[str]:
    """The texts of a reply, its calls included."""
    for key in ("content", "reasoning_content", "reasoning", "refusal"):
        yield text_at(message, key)
    for part in list_at(message, "content"):
        yield text_at(as_mapping(part), "text")
    called = [as_mapping(call).get("function") for call in list_at(message, "tool_calls")]
    for function in [*called, message.get("function_call")]:
        for key in ("name", "arguments"):
            yield text_at(as_mapping(function), key)
