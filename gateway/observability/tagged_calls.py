"""Calls, tokens and cost by the tags that the config allows as labels."""

from __future__ import annotations

from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Counter

from gateway.config.observability import ObservabilitySettings

_OTHER = "other"


class TaggedCalls:
    """Counters whose labels are tags of runs; with none of them nothing is counted.

    A client chooses the values, so that their number is limited.
    """

    def __init__(self, registry: CollectorRegistry, settings: ObservabilitySettings) -> None:
        self._tags = tags = settings.metric_tags
        self._most = settings.metric_tag_values
        self._known: dict[str, set[str]] = {tag: set() for tag in tags}
        labels = [tag.replace("-", "_") for tag in tags]

        def counter(name: str, text: str) -> Counter:
            named = f"gateway_tagged_{name}"
            return Counter(named, f"{text}, by tags of the run.", labels, registry=registry)

        if tags:
            self._calls = counter("calls_total", "Recorded calls")
            self._tokens = counter("tokens_total", "Input and output tokens")
            self._cost = counter("cost_dollars_total", "Cost of calls with a known price")

    def count(self, tags: Mapping[str, str], tokens: int, cost: float | None) -> None:
        """Count one call."""
        if not self._tags:
            return
        values = [self._bounded(tag, tags.get(tag, "")) for tag in self._tags]
        self._calls.labels(*values).inc()
        self._tokens.labels(*values).inc(tokens)
        self._cost.labels(*values).inc(cost or 0.0)

    def _bounded(self, tag: str, value: str) -> str:
        known = self._known[tag]
        if value not in known and len(known) >= self._most:
            return _OTHER
        known.add(value)
        return value
