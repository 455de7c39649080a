"""A question that a quicker engine may answer: is any of many expressions in a text?

The core needs the standard library only, whose `re` takes hundreds of instructions a character for
it. What is asked here decides nothing but whether a thorough search follows, so that answers are
the same with an engine and without.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol


class Engine(Protocol):
    """Looks for expressions, in any case of letters; a character beyond ASCII reads as `?`."""

    def finds(self, text: str) -> bool:
        """Whether one of the expressions is in the text."""
        ...


Make = Callable[[Sequence[str], Sequence[str]], Engine]
"""Expressions in a syntax that Rust and Python share, and plain texts -> what looks for them."""

_makers: list[Make] = []


def use_engine(make: Make) -> None:
    """Have `make` build what answers from now on."""
    _makers[:] = [make]


class Expressions:
    """Expressions and plain texts, in small letters, of which one is in every text in which a
    thorough search would find something."""

    __slots__ = ("_engine", "_expressions", "_texts")

    def __init__(self, expressions: Sequence[str] = (), *, texts: Sequence[str] = ()) -> None:
        self._expressions, self._texts = expressions, texts
        self._engine: Engine | None = None

    def may_be_in(self, text: str) -> bool:
        """False when none of them is in the text; always True without an engine."""
        if self._engine is None:
            if not _makers:
                return True
            self._engine = _makers[0](self._expressions, self._texts)
        return self._engine.finds(text)
