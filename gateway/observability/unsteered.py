"""Calls that went out unsteered since the start of the process, by reason."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Mapping
from typing import Final, Literal

from prometheus_client import Counter

UnsteeredReason = Literal["deadline", "timeout", "store", "size", "encoding", "error"]
"""Why a call had no decision: it took more of its own time than `steering.deadline_ms`, waited
longer than `steering.max_wait_ms`, the store failed, its body was too large or nested too deeply
to read or compressed in a way that is not known, or something else failed."""

UNSTEERED_WORDS: Final[Mapping[str, str]] = {
    "deadline": "steering took too long",
    "timeout": "waited too long",
    "store": "the store failed",
    "size": "too large or too deep to read",
    "encoding": "compressed, and cannot be read",
    "error": "steering failed",
}
"""The reasons in words, for people."""


class UnsteeredCalls:
    """Counts them, as a metric and for the health summary.

    `unrecorded`: those whose conversation was not found, so that no run has them.
    """

    def __init__(self, metric: Counter) -> None:
        self._metric = metric
        self.unrecorded: Tally[str] = Tally()

    def count(self, reason: UnsteeredReason, *, recorded: bool) -> None:
        """Count one call."""
        self._metric.labels(reason, "yes" if recorded else "no").inc()
        if not recorded:
            self.unrecorded[reason] += 1
