"""Token usage -> US dollars. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """US dollars per token. None: the list has no rate of that kind."""

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
        """All that went in."""
        cached = self.cache_read + self.cache_write + self.cache_write_1h
        return self.input + self.audio_input + cached


def charge(tokens: Tokens, rates: Rates) -> float | None:
    """US dollars for `tokens`; None without rates for input and output.

    Tokens of a kind that has no rate are charged as plain input or output.
    """
    if rates.input is None or rates.output is None:
        return None
    written = rates.input if rates.cache_write is None else rates.cache_write
    charged = (
        (tokens.input, rates.input),
        (tokens.output, rates.output),
        (tokens.cache_read, rates.cache_read),
        (tokens.cache_write, written),
        (tokens.cache_write_1h, written if rates.cache_write_1h is None else rates.cache_write_1h),
        (tokens.audio_input, rates.audio_input),
    )
    spoken = (
        (tokens.reasoning, rates.reasoning),
        (tokens.audio_output, rates.audio_output),
    )
    read_in = sum(count * (rates.input if rate is None else rate) for count, rate in charged)
    made = sum(count * (rates.output if rate is None else rate) for count, rate in spoken)
    return read_in + made


def tokens_of(usage: Mapping[str, Any]) -> Tokens:
    """The tokens of a `usage` object: of chat completions, of Responses, or of Anthropic.

    Cached tokens are part of the prompt in OpenAI's forms and stand beside it in Anthropic's.
    Counts that make no sense are 0; never raises.
    """
    anthropic = "prompt_tokens" not in usage and "cache_read_input_tokens" in usage
    prompt = _count(usage, "prompt_tokens", "input_tokens")
    completion = _count(usage, "completion_tokens", "output_tokens")
    details = _part(usage, "prompt_tokens_details", "input_tokens_details")
    made = _part(usage, "completion_tokens_details", "output_tokens_details")
    read = _count(usage, "cache_read_input_tokens") or _count(details, "cached_tokens")
    written = _count(usage, "cache_creation_input_tokens") or _count(
        details, "cache_creation_tokens", "cache_write_tokens"
    )
    spans = _part(details, "cache_creation_token_details") or _part(usage, "cache_creation")
    hour = min(written, _count(spans, "ephemeral_1h_input_tokens"))
    heard, said = _count(details, "audio_tokens"), _count(made, "audio_tokens")
    reasoned = min(completion, _count(made, "reasoning_tokens"))
    elsewhere = heard if anthropic else heard + read + written
    return Tokens(
        input=max(0, prompt - elsewhere),
        output=max(0, completion - reasoned - said),
        cache_read=read,
        cache_write=written - hour,
        cache_write_1h=hour,
        reasoning=reasoned,
        audio_input=heard,
        audio_output=said,
    )


def _count(holder: Mapping[str, Any], *names: str) -> int:
    """The first of the named counts that is there; 0 for none."""
    for name in names:
        value = holder.get(name)
        if isinstance(value, int | float) and value > 0:
            return int(value)
    return 0


def _part(holder: Mapping[str, Any], *names: str) -> Mapping[str, Any]:
    for name in names:
        value = holder.get(name)
        if isinstance(value, Mapping):
            return value
    return {}
