"""Every metric of the gateway, declared in one place; labels come from closed sets only."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

# Seconds: from the gateway's own share of a request to a long completion.
_LATENCY = (0.005, 0.025, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
_OVERHEAD = (0.00025, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1)
_TENTHS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Metrics:
    """One registry per gateway, so that two can run in one process."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self.requests = Counter(
            "gateway_requests_total",
            "Requests answered, by route, status and lane.",
            ("route", "status", "lane"),
            registry=registry,
        )
        self.duration = Histogram(
            "gateway_request_duration_seconds",
            "From the request's first byte to the answer's last.",
            ("route",),
            buckets=_LATENCY,
            registry=registry,
        )
        self.overhead = Histogram(
            "gateway_overhead_seconds",
            "Time a request spent in the gateway before it was forwarded.",
            ("route",),
            buckets=_OVERHEAD,
            registry=registry,
        )
        self.in_flight = Gauge(
            "gateway_requests_in_flight", "Requests being served now.", registry=registry
        )
        self.attempts = Counter(
            "gateway_upstream_attempts_total",
            "Calls made upstream, by deployment and outcome.",
            ("deployment", "outcome"),
            registry=registry,
        )
        self.errors = Counter(
            "gateway_errors_total",
            "Errors by kind; `client_gone` is a client that left.",
            ("kind",),
            registry=registry,
        )
        self.tokens = Counter(
            "gateway_tokens_total",
            "Tokens reported by upstreams.",
            ("direction",),
            registry=registry,
        )
        self.config_reloads = Counter(
            "gateway_config_reloads_total", "Reloads of the config.", ("result",), registry=registry
        )
        self.steering_failures = Counter(
            "gateway_steering_failures_total",
            "Requests forwarded unsteered because steering failed, by kind of failure.",
            ("kind",),
            registry=registry,
        )
        self.store_failures = Counter(
            "gateway_store_failures_total",
            "Calls that could not be recorded, by kind of failure.",
            ("kind",),
            registry=registry,
        )
        self.lookup_failures = Counter(
            "gateway_pattern_lookup_failures_total",
            "Pattern look-ups that failed, by tier.",
            ("tier",),
            registry=registry,
        )
        self.injections = Counter(
            "gateway_injections_total",
            "Pieces of guidance put into requests, by source; the universal rules are one.",
            ("source",),
            registry=registry,
        )
        self.steps = Counter(
            "gateway_steps_total",
            "Scored steps, by state after them.",
            ("state",),
            registry=registry,
        )
        self.monitor_fires = Counter(
            "gateway_monitor_fires_total",
            "Monitor readings that fired.",
            ("monitor",),
            registry=registry,
        )
        self.difficulty = Histogram(
            "gateway_step_difficulty_ratio",
            "Difficulty of scored steps, from 0 to 1.",
            buckets=_TENTHS,
            registry=registry,
        )
        self.composite = Histogram(
            "gateway_step_composite_ratio",
            "Composite of the monitors' readings at scored steps, from 0 to 1.",
            buckets=_TENTHS,
            registry=registry,
        )
        self.reroutes = Counter(
            "gateway_reroutes_total",
            "Calls sent to another model than requested, by state of the run.",
            ("state",),
            registry=registry,
        )
        self.cost = Counter(
            "gateway_cost_dollars_total",
            "What calls of known price cost, in US dollars.",
            registry=registry,
        )
        self.cost_unsteered = Counter(
            "gateway_cost_unsteered_dollars_total",
            "What the same tokens would have cost of the models requested, in US dollars; a call "
            "whose requested model has no known price counts as what it cost.",
            registry=registry,
        )
        self.unpriced = Counter(
            "gateway_unpriced_calls_total",
            "Calls whose price, or whose tokens, are not known.",
            registry=registry,
        )
        self.listeners = Gauge(
            "gateway_event_listeners", "Streams of live events open now.", registry=registry
        )
        self._request_labels: dict[tuple[str, int, str], Counter] = {}
        self._duration_labels: dict[str, tuple[Histogram, Histogram]] = {}

    def observe(
        self, route: str, status: int, lane: str, duration_s: float, overhead_s: float
    ) -> None:
        """Count one finished request; the label lookups are kept, they cost more than the count."""
        key = (route, status, lane)
        counter = self._request_labels.get(key)
        if counter is None:
            counter = self._request_labels[key] = self.requests.labels(route, str(status), lane)
        counter.inc()
        histograms = self._duration_labels.get(route)
        if histograms is None:
            histograms = (self.duration.labels(route), self.overhead.labels(route))
            self._duration_labels[route] = histograms
        histograms[0].observe(duration_s)
        histograms[1].observe(overhead_s)

    def charge(self, cost: float, unsteered: float | None) -> None:
        """Count what a call cost, in US dollars, and would have cost of the model requested.

        Where the latter is not known it counts as equal, so that the difference of the two
        counters is what is known to be saved.
        """
        self.cost.inc(cost)
        self.cost_unsteered.inc(cost if unsteered is None else unsteered)

    def render(self) -> bytes:
        """The exposition text."""
        return generate_latest(self.registry)
