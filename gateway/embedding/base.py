"""What an embedder is, and arithmetic of vectors."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

Vector = array  # of "f"
"""One embedding: float32, unit length (all zeros for a text without a known word)."""


class Spent(Protocol):
    """A call that is counted on budgets."""

    def settle(self, usage: Mapping[str, Any] | None) -> None:
        """Note what it used; None when that is not known, empty when it failed."""
        ...


class Meter(Protocol):
    """Counts calls to a provider on budgets."""

    async def admit(self, model: str, asked: str, *, answers: bool) -> Spent | None:
        """A call that may be made; None when a budget has not enough left for it."""
        ...


class EmbeddingError(Exception):
    """A text could not be embedded: the model files or the provider failed."""


@runtime_checkable
class Embedder(Protocol):
    """Makes vectors whose scalar product is the cosine similarity of their texts.

    `embedder_id` names the vector space: vectors of two ids may never be compared.
    """

    @property
    def embedder_id(self) -> str:
        """Name of the vector space, including everything it depends on."""
        ...

    @property
    def dimensions(self) -> int:
        """Length of each vector."""
        ...

    async def embed(self, texts: Sequence[str]) -> list[Vector[float]]:
        """One vector per text, in order; does not block the event loop.

        Raises: EmbeddingError.
        """
        ...

    async def close(self) -> None:
        """Release its resources."""
        ...


def normalised(values: Iterable[float]) -> Vector[float]:
    """`values` scaled to unit length; zeros stay zeros.

    Raises: EmbeddingError when a value is not finite.
    """
    vector = array("f", values)
    length = math.sqrt(sum(value * value for value in vector))
    if not math.isfinite(length):
        raise EmbeddingError("the vector has values that are not finite")
    return array("f", (value / length for value in vector)) if length else vector


def similarity(one: Vector[float], other: Vector[float]) -> float:
    """Cosine similarity of two unit vectors, in [-1, 1].

    Raises: ValueError when they differ in length.
    """
    product = sum(a * b for a, b in zip(one, other, strict=True))
    return max(-1.0, min(1.0, product))
