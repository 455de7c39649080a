"""prometheus_client's counters and histograms, without the checks that each call of them repeats.

A request counts some ten things. The library looks each time whether the metric has its labels and
whether the amount is one; here both are so by construction, and a child is found by one look-up.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Any

import prometheus_client


class Counter(prometheus_client.Counter):
    """A counter that is asked for by its labels in their order, and for amounts of at least 0."""

    def labels(self, *labelvalues: Any, **named: Any) -> Counter:
        """See prometheus_client."""
        child: Counter | None = self._metrics.get(labelvalues)  # type: ignore[assignment]
        return super().labels(*labelvalues, **named) if child is None else child

    def inc(self, amount: float = 1, exemplar: dict[str, str] | None = None) -> None:
        """Add `amount`, at least 0; without exemplars."""
        self._value.inc(amount)


class Histogram(prometheus_client.Histogram):
    """A histogram without exemplars."""

    def observe(self, amount: float, exemplar: dict[str, str] | None = None) -> None:
        """Count `amount` in the first bucket that it fits into; NaN in none."""
        self._sum.inc(amount)
        if amount == amount:  # no NaN
            self._buckets[bisect_left(self._upper_bounds, amount)].inc(1)
