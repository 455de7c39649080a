"""Token usage in the forms of all dialects: as one value, and by the rates it is charged at."""

from math import inf

from gateway.values import Fields, Value
from gateway.wire.coerce import as_number

# The names of the two sums. Source: OpenAI's APIs, Anthropic's, Bedrock's `Converse`, Gemini's.
INPUT = ("prompt_tokens", "input_tokens", "inputTokens", "promptTokenCount")
OUTPUT = ("completion_tokens", "output_tokens", "outputTokens", "candidatesTokenCount")


class Loss(Value):
    """Input that one call paid again."""

    cause: str = ""  # what differs from the call before; "" without a loss
    tokens: int = 0  # that the call before had sent, and this one did not read from the cache
    usd: float = 0.0  # US dollars beyond what reading them costs; 0 without known prices


class TokenUsage(Value):
    """Tokens of one call; None = not reported."""

    input: int | None = None  # with cached and cache-write ones
    output: int | None = None  # with those of reasoning
    cached: int | None = None  # of the input, read from the provider's cache
    cache_write: int | None = None  # of the input, written into the provider's cache
    reasoning: int | None = None  # of the output, those that the client does not see


def token_usage(usage: Fields | None) -> TokenUsage:
    """The counts in a `usage` object of any dialect; never raises."""
    if not usage:
        return TokenUsage()
    input_details = first_mapping(usage, "prompt_tokens_details", "input_tokens_details")
    output_details = first_mapping(usage, "completion_tokens_details", "output_tokens_details")
    of_input = {**usage, **input_details}
    return TokenUsage(
        input=_input(usage),
        output=_count(usage, *OUTPUT),
        cached=_count(of_input, "cached_tokens", "cache_read_input_tokens"),
        cache_write=_count(
            of_input, "cache_creation_input_tokens", "cache_creation_tokens", "cache_write_tokens"
        ),
        reasoning=_count(output_details, "reasoning_tokens"),
    )


def tokens_of(usage: Fields) -> dict[str, int]:
    """The tokens of a `usage` object by the rate they are charged at, each once. OpenAI's
    forms include cached tokens in the prompt, Anthropic's counts them separately. Counts that are
    not positive numbers are read as 0; never raises."""
    prompt = _positive(usage, *INPUT)
    completion = _positive(usage, *OUTPUT)
    input_details = first_mapping(usage, "prompt_tokens_details", "input_tokens_details")
    output_details = first_mapping(usage, "completion_tokens_details", "output_tokens_details")
    read = _positive(usage, "cache_read_input_tokens") or _positive(input_details, "cached_tokens")
    written = _positive(usage, "cache_creation_input_tokens") or _positive(
        input_details, "cache_creation_tokens", "cache_write_tokens"
    )
    by_lifetime = first_mapping(input_details, "cache_creation_token_details") or first_mapping(
        usage, "cache_creation"
    )
    written_1h = min(written, _positive(by_lifetime, "ephemeral_1h_input_tokens"))
    audio_input = _positive(input_details, "audio_tokens")
    audio_output = _positive(output_details, "audio_tokens")
    reasoning = min(completion, _positive(output_details, "reasoning_tokens"))
    charged_apart = audio_input
    if "prompt_tokens" in usage or "cache_read_input_tokens" not in usage:  # not Anthropic's form
        charged_apart += read + written
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


def _input(usage: Fields) -> int | None:
    total = _count(usage, *INPUT)
    if total is None or "prompt_tokens" in usage:
        return total
    # Anthropic's `input_tokens` leaves out what was read from the cache or written to it.
    separate = ("cache_read_input_tokens", "cache_creation_input_tokens")
    return total + sum(_count(usage, name) or 0 for name in separate)


def _count(values: Fields, *names: str) -> int | None:
    for name in names:
        count = values.get(name)
        if isinstance(count, int) and not isinstance(count, bool) and count >= 0:
            return count
    return None


def _positive(holder: Fields, *names: str) -> int:
    """The first positive count among `names`; 0 when there is none."""
    values = (as_number(holder.get(name), 0.0) for name in names)
    return next((int(value) for value in values if 0 < value < inf), 0)


def first_mapping(values: Fields, *names: str) -> Fields:
    """The object under the first of `names` that holds one; empty when none does."""
    for name in names:
        value = values.get(name)
        if isinstance(value, dict):
            return value
    return {}
