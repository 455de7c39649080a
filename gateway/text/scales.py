"""The arithmetic of charts, the same for a page and for a terminal: positions, stretches, bins."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")

HOTTEST = 5
"""The heat of a reading that fires; below it are HOTTEST levels, 0 to 4."""


def fraction(value: float, low: float, high: float) -> float:
    """Where a value lies between `low` and `high`, in [0, 1]; values outside go to the nearer end.

    0 when the scale has no length.
    """
    if high <= low:
        return 0.0
    return min(max((value - low) / (high - low), 0.0), 1.0)


def stretches(values: Iterable[T | None]) -> Iterator[tuple[int, int, T]]:
    """(first index, length, value) of each stretch of equal neighbours; None is left out."""
    at = 0
    for value, group in itertools.groupby(values):
        length = len(list(group))
        if value is not None:
            yield at, length, value
        at += length


def thinned(values: Sequence[float | None], width: int) -> list[float | None]:
    """At most `width` values, each the highest of its part; None where a part has no value."""
    if len(values) <= width:
        return list(values)
    edges = [round(i * len(values) / width) for i in range(width + 1)]
    parts = [values[a:b] for a, b in itertools.pairwise(edges)]
    return [max((v for v in part if v is not None), default=None) for part in parts]


def heat(value: float | None, fire: float) -> int | None:
    """The level of a monitor's reading, 0 to HOTTEST; HOTTEST from `fire` on. None: no reading."""
    if value is None:
        return None
    if value >= fire:
        return HOTTEST
    return min(HOTTEST - 1, int(HOTTEST * value / fire))
