"""What a call cost: from its token usage and the model's rates to US dollars. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gateway.wire.coerce import as_list, as_mapping, as_number, as_text, first_mapping


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """US dollars per token; None where the price list has no rate of that kind."""

    input: float | None = None
    output: float | None = None
    cache_read: float | None = None
    cache_write: float | None = None
    cache_write_1h: float | None = None
    reasoning: float | None = None
    audio_input: float | None = None
    audio_output: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """Tokens by the rate they are charged at; each is counted once."""

    input: int
    output: int
    cache_read: int
    cache_write: int
    cache_write_1h: int
    reasoning: int
    audio_input: int
    audio_output: int

    @property
    def prompt(self) -> int:
        """All input tokens, cached and audio ones included."""
        cached = self.cache_read + self.cache_write + self.cache_write_1h
        return self.input + self.audio_input + cached


def charge(tokens: Tokens, rates: Rates) -> float | None:
    """US dollars for `tokens`; None without rates for input and output.

    Tokens of a kind that has no rate are charged as plain input or output.
    """
    if rates.input is None or rates.output is None:
        return None
    written = rates.input if rates.cache_write is None else rates.cache_write
    inputs = (
        (tokens.input, rates.input),
        (tokens.output, rates.output),
        (tokens.cache_read, rates.cache_read),
        (tokens.cache_write, written),
        (tokens.cache_write_1h, written if rates.cache_write_1h is None else rates.cache_write_1h),
        (tokens.audio_input, rates.audio_input),
    )
    outputs = (
        (tokens.reasoning, rates.reasoning),
        (tokens.audio_output, rates.audio_output),
    )
    input_cost = sum(count * (rates.input if rate is None else rate) for count, rate in inputs)
    output_cost = sum(count * (rates.output if rate is None else rate) for count, rate in outputs)
    return input_cost + output_cost


def tokens_of(usage: Mapping[str, Any]) -> Tokens:
    """The tokens of a `usage` object: of chat completions, of Responses, or of Anthropic.

    OpenAI's forms include cached tokens in the prompt, Anthropic's counts them separately. Counts
    that are not positive numbers are read as 0; never raises.
    """
    anthropic = "prompt_tokens" not in usage and "cache_read_input_tokens" in usage
    prompt = _count(usage, "prompt_tokens", "input_tokens")
    completion = _count(usage, "completion_tokens", "output_tokens")
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
    charged_apart = audio_input if anthropic else audio_input + read + written
    return Tokens(
        input=max(0, prompt - charged_apart),
        output=max(0, completion - reasoning - audio_output),
        cache_read=read,
        cache_write=written - written_1h,
        cache_write_1h=written_1h,
        reasoning=reasoning,
        audio_input=audio_input,
        audio_output=audio_output,
    )


def _count(holder: Mapping[str, Any], *names: str) -> int:
    """The first positive count among `names`; 0 when there is none."""
    for name in names:
        value = as_number(holder.get(name), 0.0)
        if 0 < value < math.inf:
            return int(value)
    return 0


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
