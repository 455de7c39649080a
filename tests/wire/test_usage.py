"""Token counts, whatever a provider calls them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.wire.usage import TokenUsage, token_usage

anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)
NAMES = ["prompt_tokens", "input_tokens", "completion_tokens", "prompt_tokens_details"]
NAMES += ["completion_tokens_details", "cached_tokens", "reasoning_tokens"]


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        (None, TokenUsage()),
        ({}, TokenUsage()),
        (
            {
                "prompt_tokens": 12,
                "completion_tokens": 8,
                "prompt_tokens_details": {"cached_tokens": 5},
                "completion_tokens_details": {"reasoning_tokens": 3},
            },
            TokenUsage(input=12, output=8, cached=5, reasoning=3),
        ),
        (
            {
                "input_tokens": 7,
                "output_tokens": 2,
                "input_tokens_details": {"cached_tokens": 0},
                "output_tokens_details": {"reasoning_tokens": 0},
            },
            TokenUsage(input=7, output=2, cached=0, reasoning=0),
        ),
        (
            {"prompt_tokens": 9, "cache_read_input_tokens": 4, "cache_creation_input_tokens": 3},
            TokenUsage(input=9, cached=4, cache_write=3),
        ),
        ({"prompt_tokens": True, "completion_tokens": -1}, TokenUsage()),
        ({"prompt_tokens": "12", "prompt_tokens_details": [1]}, TokenUsage()),
    ],
)
def test_counts(usage: dict[str, object] | None, expected: TokenUsage) -> None:
    """Known names in either dialect are read; what is no count is not reported."""
    assert token_usage(usage) == expected


@given(st.dictionaries(st.sampled_from(NAMES), anything))
def test_no_usage_object_breaks_it(usage: dict[str, object]) -> None:
    """Any object gives counts that are whole and not negative, or none."""
    found = token_usage(usage)
    for count in (found.input, found.output, found.cached, found.cache_write, found.reasoning):
        assert count is None or (isinstance(count, int) and count >= 0)
