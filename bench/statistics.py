"""Rounds -> one figure with its spread."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from bench.load import Slice


def percentile(values: Sequence[float], percent: float) -> float:
    """The nearest-rank percentile; nan of nothing."""
    if not values:
        return math.nan
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """The median of the rounds, and the least and the greatest of them."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Figure:
        """From one value a round."""
        values = [v for v in values if not math.isnan(v)] or [math.nan]
        return cls(median=statistics.median(values), low=min(values), high=max(values))


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """One arm in one case."""

    arm: str
    case: str
    requests: int
    failures: int
    cpu_ms: Figure
    """CPU of the arm's processes per request."""

    p50_ms: Figure
    p99_ms: Figure
    first_byte_p50_ms: Figure
    per_s: Figure


def summarise(arm: str, case: str, slices: Sequence[Slice]) -> Summary:
    """The rounds of one arm in one case, put together."""
    return Summary(
        arm=arm,
        case=case,
        requests=sum(len(s.latencies_ms) for s in slices),
        failures=sum(s.failures for s in slices),
        cpu_ms=Figure.of([s.cpu_ms_per_request for s in slices]),
        p50_ms=Figure.of([percentile(s.latencies_ms, 50) for s in slices]),
        p99_ms=Figure.of([percentile(s.latencies_ms, 99) for s in slices]),
        first_byte_p50_ms=Figure.of([percentile(s.first_byte_ms, 50) for s in slices]),
        per_s=Figure.of([len(s.latencies_ms) / s.seconds for s in slices]),
    )
