"""Tokens of a call: as its upstream reported them, or estimated from its bytes."""

import re
from collections.abc import Iterator
from math import inf

from gateway.values import FieldDict, Fields
from gateway.wire.coerce import (
    as_mapping,
    as_number,
    list_at,
    mappings_at,
    text_at,
)
from gateway.wire.usage import INPUT, OUTPUT, first_mapping


def tokens_of(usage: Fields) -> dict[str, int]:
    """The tokens of a `usage` object by the rate they are charged at, each once. OpenAI's
    forms include cached tokens in the prompt, Anthropic's counts them separately. Counts that are
    not positive numbers are read as 0; never raises."""
    anthropic = "prompt_tokens" not in usage and "cache_read_input_tokens" in usage
    prompt = _count(usage, *INPUT)
    completion = _count(usage, *OUTPUT)
    input_details = first_mapping(usage, "prompt_tokens_details", "input_tokens_details")
    output_details = first_mapping(usage, "completion_tokens_details", "output_tokens_details")
    read = _count(usage, "cache_read_input_tokens") or _count(input_details, "cached_tokens")
    written = _count(usage, "cache_creation_input_tokens") or _count(
        input_details, "cache_creation_tokens", "cache_write_tokens"
    )
    by_lifetime = first_mapping(input_details, "cache_creation_token_details") or first_mapping(
        usage, "cache_creation"
    )
    written_1h = min(written, _count(by_lifetime, "ephemeral_1h_input_tokens"))
    audio_input = _count(input_details, "audio_tokens")
    audio_output = _count(output_details, "audio_tokens")
    reasoning = min(completion, _count(output_details, "reasoning_tokens"))
    if anthropic:
        charged_apart = audio_input
    else:
        charged_apart = audio_input + read + written
    return {
        "input": max(0, prompt - charged_apart),
        "output": max(0, completion - reasoning - audio_output),
        "cache_read": read,
        "cache_write": written - written_1h,
        "cache_write_1h": written_1h,
        "audio_input": audio_input,
        "reasoning": reasoning,
        "audio_output": audio_output,
    }


def _count(holder: Fields, *names: str) -> int:
    """The first positive count among `names`; 0 when there is none."""
    values = (as_number(holder.get(name), 0.0) for name in names)
    return next((int(value) for value in values if 0 < value < inf), 0)


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
