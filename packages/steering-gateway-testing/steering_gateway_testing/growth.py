"""How the cost of a reader grows with its text, whatever the machine."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable

# A text four times as long costs four times as much when reading is linear, 16 times when it is
# quadratic. The limit is between the two: a shared machine stretches single measurements.
STEP = 4
LIMIT = 9.0
_REPEATS = 5
_JUDGED = 4
"""Growth below so many times the cost of simple work is not judged: a few microseconds vary."""
# Exponential cost is seen on short texts, before it takes hours.
_SHORT = (*range(8, 36, 4), 50, 75, 110, 165, 250, 375)
_SHORT_COST = 100


def cost(read: Callable[[], object], repeats: int = 1) -> int:
    """CPU nanoseconds of this thread for the fastest of several calls.

    Other threads of the process (a gateway of an earlier test, an import) do not count.
    """
    best = 0
    for _ in range(repeats):
        start = time.thread_time_ns()
        read()
        spent = time.thread_time_ns() - start
        best = min(best, spent) if best else spent
    return max(best, 1)


def exceeds_linear(
    reader: Callable[[str], Callable[[], object]], text: Callable[[int], str], sizes: list[int]
) -> str:
    """Where the cost grows faster than the text, in words; empty when it never does.

    `reader` gives the call that reads a text; each size is `STEP` times the one before. Stops at
    the first growth that is confirmed, so that a cubic reader is not run on a long text.
    """
    floor = _reference_cost(sizes[0])
    for size in _SHORT:
        read = reader(text(size))
        if cost(read) > _SHORT_COST * floor and cost(read, 2) > _SHORT_COST * floor:
            return f"{size} characters cost more than {_SHORT_COST * sizes[0]} simple ones"
    before = reader(text(sizes[0]))
    lower = cost(before)
    for size in sizes[1:]:
        after = reader(text(size))
        higher = cost(after)
        if higher > LIMIT * lower and higher > _JUDGED * floor:
            lower, higher = cost(before, _REPEATS), min(higher, cost(after, _REPEATS))
            if higher > LIMIT * lower and higher > _JUDGED * floor:
                return (
                    f"{size // STEP} -> {size} characters cost {higher / lower:.0f} times as much"
                )
        before, lower = after, higher
    return ""


@functools.cache
def _reference_cost(size: int) -> int:
    """What simple linear work on a text of `size` characters costs: less is not judged."""
    text = "a" * size
    return cost(lambda: [letter for letter in text if letter == " "], _REPEATS)
