"""Answers about short texts that recur: names of tools, keys of arguments."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, wraps
from typing import TypeVar

T = TypeVar("T")

MAX_CHARS = 64
"""A longer text is not remembered: clients choose these names, and must not fill the memory."""
MAX_TEXTS = 1024


def remembered(function: Callable[[str], T]) -> Callable[[str], T]:
    """A pure function of a text that answers from memory for the short texts it met lately."""
    known = lru_cache(MAX_TEXTS)(function)

    @wraps(function)
    def answer(text: str) -> T:
        return known(text) if len(text) <= MAX_CHARS else function(text)

    return answer
