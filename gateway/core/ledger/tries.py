"""One call read against the ledger: what it was tried on, how it ended, which entry it joined."""

from typing import Literal

from gateway.core.ledger.entries import Entry
from gateway.core.step import ActionFacts
from gateway.values import Value

# `same`, `reworded`: the call brings what the run has seen; `pending`: it waits for something.
Kind = Literal["new", "failed", "same", "reworded", "pending", "cancelled"]
REPEATS = ("same", "reworded")


class Try(Value):
    """A call against the run before it."""

    kind: Kind  # how it ended against what the run has seen
    count: int = 1  # times that this call gave this result since something changed
    failures: int = 0  # times that its failure has come in the run; 0 without one
    entry: Entry | None = None  # the entry that it joined; None for a try that brings news


# The calls of a step, each with its try.
Tries = tuple[tuple[ActionFacts, Try], ...]
