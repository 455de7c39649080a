"""Tokens of a call as its upstream reported them, by the rate they are charged at."""

from math import inf

from gateway.values import Fields
from gateway.wire.coerce import as_number
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
