"""No pattern of the product costs more than linear time, whatever text a client or model writes."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from gateway.wire.response_tee import NamedEnd
from tests.hostile.attacks import MOST, attacks
from tests.hostile.growth import exceeds_linear
from tests.hostile.patterns import Found, found_patterns, made_at_run_time

SIZES = [512, 2048, 8192]
FEW = 1
HELD_AT_RUN_TIME = {"gateway.text.secrets.__init__", "gateway.wire.response_tee.__init__"}
HELD_AT_RUN_TIME |= {"gateway.features.learning.gate.form"}
"""Functions that compile a pattern of fixed form; it is found in the values that hold it."""


def growth(found: Found, most: int = MOST) -> str:
    """Why a pattern is slow on one of its attacks, or nothing."""
    pattern = found.pattern
    binary = isinstance(pattern.pattern, bytes)

    def reader(text: str) -> Callable[[], object]:
        given: Any = text.encode("utf-8", "surrogatepass") if binary else text
        if found.anywhere:
            return lambda: sum(1 for _ in pattern.finditer(given))
        return lambda: (pattern.match(given), pattern.fullmatch(given))

    for opening, unit, ending in attacks(pattern, most):

        def text(size: int, parts: tuple[str, str, str] = (opening, unit, ending)) -> str:
            return parts[0] + parts[1] * (size // len(parts[1])) + parts[2]

        if reason := exceeds_linear(reader, text, SIZES):
            return f"{opening!r} + {unit!r} * n + {ending!r}: {reason}"
    return ""


@pytest.mark.slow
@pytest.mark.parametrize("most", [FEW, pytest.param(MOST, marks=pytest.mark.nightly)])
def test_every_pattern_is_linear_on_hostile_texts(most: int) -> None:
    """No pattern that reads text of clients or models costs more than linear time."""
    slow = {found.place: reason for found in found_patterns() if (reason := growth(found, most))}
    assert not slow


@pytest.mark.slow
def test_patterns_that_the_script_must_find() -> None:
    """Patterns of classes and those made at run time are found, or on the list."""
    found = found_patterns()
    held = {each.pattern.pattern for each in found}
    assert len(found) > 100
    assert NamedEnd("message_stop")._pattern.pattern in held
    assert made_at_run_time() == HELD_AT_RUN_TIME


@pytest.mark.parametrize(
    ("pattern", "anywhere"),
    [
        (r"<{5,}\s*SEARCH\s*\n(.*?)\n?={5,}\s*\n(.*?)\n?>{5,}\s*REPLACE", True),
        (r"\bsed\s+(['\"])s/(.*?)(?<!\\)/(.*?)(?<!\\)/\w*\1\s+(\S+)", True),
        (r"<<-?\s*(\w+)\n(.*?)\n\1\b", True),
        (r"\s*\|", True),
        (r"(?:a|b|ab)*c", False),
        (r"\s*\{?\s*\}?\s*$", False),
    ],
)
def test_slow_patterns_are_noticed(pattern: str, anywhere: bool) -> None:
    """Patterns that are known to be slow are found to be."""
    assert growth(Found("here", re.compile(pattern, re.DOTALL), anywhere))
