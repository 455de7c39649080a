"""The function calls of a request stay within their limits."""

from __future__ import annotations

import json

import pytest

from bench import calls


@pytest.mark.slow
def test_no_request_makes_more_calls_than_it_may() -> None:
    """Each kind of request, through a running gateway with a database, is within `calls.json`."""
    limits = json.loads(calls.LIMITS.read_text())
    counts = calls.count()
    assert counts.keys() == limits.keys()
    assert calls.beyond(counts, limits) == []
    assert min(counts.values()) > 500, "a request passes through more code than this"


def test_a_request_that_makes_too_many_calls_is_named() -> None:
    """The line has the kind, the count and the limit; a count at its limit is none."""
    found = calls.beyond({"small": 12, "cold": 20}, {"small": 11, "cold": 20})
    assert found == ["small: 12 calls, limit 11"]
