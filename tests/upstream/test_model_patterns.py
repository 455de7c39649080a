"""Model names with stars: what the first star stands for."""

from __future__ import annotations

import pytest

from gateway.upstream.deployments import longest_match
from steering_gateway_testing.growth import exceeds_linear


@pytest.mark.parametrize(
    ("pattern", "model", "starred"),
    [
        ("*", "gpt", "gpt"),
        ("openai/*", "openai/a/b", "a/b"),
        ("a*c", "abc", "b"),
        ("a*a", "a", None),
        ("a*b*c", "aXbYbZc", "XbY"),
        ("a**c", "axc", "x"),
        ("*/*-mini", "x/y/z-mini", "x/y"),
        ("a*b*c", "abbc", "b"),
        ("a*b*c", "ac", None),
    ],
)
def test_the_first_star_is_as_long_as_it_can_be(
    pattern: str, model: str, starred: str | None
) -> None:
    """Of several ways to match, the first star takes the most."""
    found = longest_match([pattern], model)
    assert found == (None if starred is None else (pattern, starred))


def test_a_hostile_name_costs_linear_time() -> None:
    """A model's name is the client's, and may repeat what the stars stand between."""
    assert not exceeds_linear(
        lambda name: lambda: longest_match(["*a*b*c*a*z"], name),
        lambda size: "abca" * (size // 4),
        [512, 2048, 8192],
    )
