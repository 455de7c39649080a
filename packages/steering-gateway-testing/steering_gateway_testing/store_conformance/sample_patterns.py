"""Patterns and vectors to store, and short forms of adding and searching them."""

from __future__ import annotations

import math
import random
from array import array

from gateway.backends import Stores
from gateway.core.pattern import Pattern, Tier
from gateway.stores.patterns import Vector, VectorSearch
from gateway.stores.sql.patterns import PatternStore

SIZE = 16


def vector(*values: float, size: int = SIZE) -> Vector[float]:
    """A unit vector that begins with these values."""
    padded = [*values, *([0.0] * (size - len(values)))]
    length = math.sqrt(sum(value * value for value in padded)) or 1.0
    return array("f", [value / length for value in padded])


def drawn(seed: int, size: int = SIZE) -> Vector[float]:
    """A unit vector in a direction drawn from `seed`."""
    source = random.Random(seed)
    return vector(*(source.gauss(0, 1) for _ in range(size)), size=size)


def pattern(text: str, tier: Tier = Tier.E2, **more: object) -> Pattern:
    """A pattern of this text; `more` are further fields of it."""
    return Pattern(tier=tier, fields={"situation": "s", "unlock": text}, **more)  # type: ignore[arg-type]


async def add(store: PatternStore, each: Pattern, at: Vector[float] | None = None) -> str:
    """Add one pattern and return its id."""
    return (await store.add([(each, at)]))[0][1]


async def found(store: PatternStore, **search: object) -> list[str]:
    """The texts a search finds, best first."""
    wanted = {"tier": Tier.E2, "vector": vector(1), "limit": 9} | search
    return [match.pattern.fields["unlock"] for match in await store.search(VectorSearch(**wanted))]  # type: ignore[arg-type]


async def opened(stores: Stores) -> PatternStore:
    """The pattern store with the space of a test embedder open."""
    await stores.patterns.open_space("test", SIZE)
    return stores.patterns
