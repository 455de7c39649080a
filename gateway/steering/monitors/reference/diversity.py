"""Diversity: the tools in use have collapsed to one or two."""

from __future__ import annotations

from collections import deque
from itertools import pairwise

from gateway.steering.monitors.reference.suite import CallText
from gateway.steering.monitors.settings import MonitorSettings

ONE_TOOL, TWO_TOOLS = 1.0, 0.7


class Diversity:
    """Distinct tools in the newest calls, once the run has made a minimum of calls.

    Strict alternation of two tools counts as healthy. Source: reference section 4.5."""

    __slots__ = ("_minimum", "_tail", "_total")

    def __init__(self, settings: MonitorSettings) -> None:
        self._minimum = settings.diversity_min_total
        self._tail: deque[str] = deque(maxlen=settings.diversity_window)
        self._total = 0

    def push(self, call: CallText) -> None:
        """Observe the tool of a call."""
        if call.name:
            self._tail.append(call.name)
            self._total += 1

    def reading(self) -> tuple[float, str]:
        """1.0 for one tool, 0.7 for two that do not alternate, else 0."""
        tail = self._tail
        if self._total < self._minimum or len(tail) != tail.maxlen:
            return 0.0, ""
        distinct = len(set(tail))
        if distinct == 1:
            return ONE_TOOL, f"last {len(tail)} calls: only {tail[0][:60]}"
        if distinct > 2 or all(a != b for a, b in pairwise(tail)):
            return 0.0, ""
        return TWO_TOOLS, f"last {len(tail)} calls: only {' and '.join(sorted(set(tail)))[:120]}"
