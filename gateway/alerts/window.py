"""The calls of the last minutes, from the counters that are there anyway."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, fields

from prometheus_client import Counter

from gateway.dialects import DIALECTS
from gateway.observability.metrics import Metrics

_ROUTES = frozenset(dialect.route for dialect in DIALECTS.values())
_CLIENT_GONE = 499


@dataclass(frozen=True, slots=True, kw_only=True)
class CallWindow:
    """Calls and tokens within a time. `failed`: answered with a status of 400 or above."""

    calls: int = 0
    failed: int = 0
    unsteered: int = 0
    input_tokens: int = 0
    cached_tokens: int = 0

    @property
    def error_rate(self) -> float:
        """Of the calls; 0 without one."""
        return self.failed / self.calls if self.calls else 0.0

    @property
    def unsteered_rate(self) -> float:
        """Of the calls; 0 without one."""
        return self.unsteered / self.calls if self.calls else 0.0

    @property
    def cached_share(self) -> float | None:
        """Of the input tokens; None without any."""
        return self.cached_tokens / self.input_tokens if self.input_tokens else None


class CallCounters:
    """Differences of the counters over a sliding time: requests pay nothing for them."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._seen: deque[tuple[float, CallWindow]] = deque()
        self._rests = rests_in(metrics)

    def since(self, now: float, window_s: float) -> CallWindow:
        """What was counted in the `window_s` before `now`, both in seconds of a steady clock; less
        where this has not been asked for that long."""
        total = _totals(self._metrics)
        self._seen.append((now, total))
        while len(self._seen) > 1 and self._seen[1][0] <= now - window_s:
            self._seen.popleft()
        before = self._seen[0][1]
        return CallWindow(
            **{f.name: getattr(total, f.name) - getattr(before, f.name) for f in fields(total)}
        )

    def rested(self) -> Mapping[str, int]:
        """How often each deployment began to rest since this was last asked."""
        before, self._rests = self._rests, rests_in(self._metrics)
        more = {name: times - before.get(name, 0) for name, times in self._rests.items()}
        return {name: times for name, times in more.items() if times}


def rests_in(metrics: Metrics) -> dict[str, int]:
    """How often each deployment has begun to rest."""
    return {labels["deployment"]: n for labels, n in _samples(metrics.deployment_rests)}


def _totals(metrics: Metrics) -> CallWindow:
    calls = failed = 0
    for labels, count in _samples(metrics.requests):
        if labels["route"] in _ROUTES:
            calls += count
            status = int(labels["status"])
            failed += count if status >= 400 and status != _CLIENT_GONE else 0
    tokens = {labels["direction"]: count for labels, count in _samples(metrics.tokens)}
    return CallWindow(
        calls=calls,
        failed=failed,
        unsteered=sum(count for _, count in _samples(metrics.unsteered)),
        input_tokens=tokens.get("input", 0),
        cached_tokens=sum(count for _, count in _samples(metrics.cached_tokens)),
    )


def _samples(counter: Counter) -> list[tuple[Mapping[str, str], int]]:
    return [
        (sample.labels, int(sample.value))
        for family in counter.collect()
        for sample in family.samples
        if sample.name.endswith("_total")
    ]
