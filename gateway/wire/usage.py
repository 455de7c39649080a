"""Token usage as providers report it -> one value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenUsage:
    """Tokens of one call. `input` includes the cached and cache-write ones; None = not reported."""

    input: int | None = None
    output: int | None = None
    cached: int | None = None
    cache_write: int | None = None
    reasoning: int | None = None


def token_usage(usage: Mapping[str, Any] | None) -> TokenUsage:
    """The counts in a `usage` object of any dialect; never raises."""
    if not usage:
        return TokenUsage()
    input_details = _mapping(usage, "prompt_tokens_details", "input_tokens_details")
    output_details = _mapping(usage, "completion_tokens_details", "output_tokens_details")
    return TokenUsage(
        input=_input(usage),
        output=_count(usage, "completion_tokens", "output_tokens"),
        cached=_count({**usage, **input_details}, "cached_tokens", "cache_read_input_tokens"),
        cache_write=_count(
            {**usage, **input_details}, "cache_creation_input_tokens", "cache_creation_tokens"
        ),
        reasoning=_count(output_details, "reasoning_tokens"),
    )


def _input(usage: Mapping[str, Any]) -> int | None:
    whole = _count(usage, "prompt_tokens", "input_tokens")
    if whole is None or "prompt_tokens" in usage:
        return whole
    # Anthropic counts what came from the cache, or went into it, beside the rest.
    beside = ("cache_read_input_tokens", "cache_creation_input_tokens")
    return whole + sum(_count(usage, name) or 0 for name in beside)


def _mapping(usage: Mapping[str, Any], *names: str) -> Mapping[str, Any]:
    found = (usage.get(name) for name in names)
    return next((value for value in found if isinstance(value, Mapping)), {})


def _count(values: Mapping[str, Any], *names: str) -> int | None:
    for name in names:
        value = values.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
            return value
    return None
