"""Metrics: every one is declared here, with labels from closed sets only.

The counters and histograms leave out checks that prometheus_client repeats in each call: a request
counts some ten things, and their labels and amounts are valid by construction."""

import asyncio
from bisect import bisect_left
from collections import Counter as Tally
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

import prometheus_client
from prometheus_client import CollectorRegistry, Gauge, generate_latest

from gateway.hooks import given
from gateway.values import Texts
from gateway.wire.usage import TokenUsage

Declared = TypeVar("Declared")


class Counter(prometheus_client.Counter):
    """A counter that is asked for by its labels in their order, and for amounts of at least 0."""

    def labels(self, *labelvalues: Any, **named: Any) -> "Counter":
        """See prometheus_client."""
        child: Counter | None = self._metrics.get(labelvalues)  # type: ignore[assignment]
        if child is None:
            return super().labels(*labelvalues, **named)
        return child

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


# Seconds: from the gateway's own time in a request to a long completion.
_LATENCY = (0.005, 0.025, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
_OVERHEAD = (0.00025, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1)
_TENTHS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Metrics:
    """One registry per gateway, so that two can run in one process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._request_labels: dict[tuple[str, int, str], Counter] = {}
        self._duration_labels: dict[str, tuple[Histogram, Histogram]] = {}
        self._declare_calls()
        self._declare_parts()
        self._of_features = {kind: kind(self) for kind in given("metrics")}

    def of(self, kind: type[Declared]) -> Declared:
        """The metrics of a feature, by the class that declares them."""
        found: Declared = self._of_features[kind]
        return found

    def _declare_calls(self) -> None:
        self.requests = self.counter(
            "requests_total", "Requests answered, by route, status and lane.", "route status lane"
        )
        self.duration = self.histogram(
            "request_duration_seconds",
            "Time from the request's first byte to the answer's last.",
            buckets=_LATENCY,
            labels="route",
        )
        self.overhead = self.histogram(
            "overhead_seconds",
            "Time a request spent in the gateway before it was forwarded.",
            buckets=_OVERHEAD,
            labels="route",
        )
        self.in_flight = self.gauge("requests_in_flight", "Requests being served now.")
        self.attempts = self.counter(
            "upstream_attempts_total",
            "Calls made upstream, by deployment and outcome.",
            "deployment outcome",
        )
        self.errors = self.counter(
            "errors_total", "Errors by kind; `client_gone` is a client that left.", "kind"
        )
        self.tokens = self.counter("tokens_total", "Tokens reported by upstreams.", "direction")
        self.cached_tokens = self.counter(
            "cached_tokens_total", "Input tokens that came from the provider's prompt cache."
        )
        self.deployment_rests = self.counter(
            "deployment_rests_total",
            "Times a deployment failed too often and began to rest.",
            "deployment",
        )
        self.estimated_tokens = self.counter(
            "estimated_tokens_total",
            "Tokens estimated for calls whose upstream reported none, or broke off.",
            "direction",
        )
        self.estimated_calls = self.counter(
            "estimated_calls_total", "Calls whose tokens are estimated: none were reported."
        )
        self.subscribers = self.gauge("event_listeners", "Open streams of live events.")
        self.steps = self.counter(
            "steps_total", "Scored steps, by the state after the step.", "state"
        )
        self.monitor_fires = self.counter(
            "monitor_fires_total", "Monitor readings that fired.", "monitor"
        )
        self.difficulty = self.histogram(
            "step_difficulty_ratio", "Difficulty of scored steps, from 0 to 1.", buckets=_TENTHS
        )
        self.composite = self.histogram(
            "step_composite_ratio",
            "Composite of the monitors' readings at scored steps, from 0 to 1.",
            buckets=_TENTHS,
        )
        self.injections = self.counter(
            "injections_total",
            "Pieces of guidance put into requests, by source; the universal rules count as one.",
            "source",
        )
        self.refused_changes = self.counter(
            "refused_changes_total",
            "Requests that an upstream refused with guidance or `stream_options` in them, by "
            "kind (length, policy, shape, unknown) and by what follows: nothing beyond this "
            "request, or no guidance at that place for an hour (request, place).",
            "kind scope",
        )
        self.reroutes = self.counter(
            "reroutes_total",
            "Calls sent to a model other than the requested one, by state of the run.",
            "state",
        )

    def _declare_parts(self) -> None:
        self.config_reloads = self.counter(
            "config_reloads_total", "Reloads of the config.", "result"
        )
        self.steering_failures = self.counter(
            "steering_failures_total",
            "Requests forwarded unsteered because steering failed, by kind of failure.",
            "kind",
        )
        self.unsteered = self.counter(
            "unsteered_calls_total",
            "Calls forwarded without a decision, by reason (deadline, timeout, store, error) "
            "and whether their conversation was known, so that they are recorded (yes, no).",
            "reason recorded",
        )
        self.unread = self.counter(
            "unread_answers_total",
            "Successful answers that were relayed without being read, by reason (empty, "
            "encoding, size, form).",
            "reason",
        )
        self.judgements = self.counter(
            "judged_steps_total",
            "Steps sent to the judge: judged, cached, clamped to [0, 1], or left to the "
            "ledger instead (invalid, timeout, error, budget).",
            "result",
        )
        self.readings = self.counter(
            "reader_jobs_total",
            "Things that reader.model was asked about: read, cached, unknown (an answer in "
            "another form), unread (nothing to show), budget, error (asked again later).",
            "result",
        )
        self.lookup_failures = self.counter(
            "pattern_lookup_failures_total", "Pattern look-ups that failed, by tier.", "tier"
        )
        self.store_failures = self.counter(
            "store_failures_total",
            "Calls that could not be recorded at once, by kind of failure.",
            "kind",
        )
        self.store_dropped = self.counter(
            "store_dropped_total", "Calls whose record was dropped: too many were waiting."
        )
        self.store_reopened = self.counter(
            "store_reopened_total",
            "Times the database was found deleted or replaced, and reopened.",
        )
        self.store_damaged = self.gauge(
            "store_damaged_files",
            "Damaged database files that were kept beside a new one since the start.",
        )
        self.store_degraded = self.gauge(
            "store_degraded", "1 while the store is unavailable or slow, else 0."
        )
        self.store_waiting = self.gauge(
            "store_waiting_records", "Records in memory that wait for the store."
        )
        self.store_waiting_bytes = self.gauge(
            "store_waiting_bytes", "Memory of the records that wait for the store."
        )
        self.store_on_disk = self.gauge(
            "store_waiting_on_disk_records", "Those of them that are in storage.spool_path, too."
        )
        self.store_memory_only = self.counter(
            "store_memory_only_total",
            "Answers that went out before their waiting record was in storage.spool_path: the "
            "disk is slow, full or read-only.",
        )
        self.cost = self.counter(
            "cost_dollars_total", "Cost of the calls whose price is known, in US dollars."
        )
        self.cost_unsteered = self.counter(
            "cost_unsteered_dollars_total",
            "Cost of the same tokens at the requested models' prices, in US dollars; a call "
            "whose requested model has no known price counts with its actual cost.",
        )
        self.unpriced = self.counter(
            "unpriced_calls_total", "Calls whose price or tokens are unknown."
        )
        self.held_calls = self.counter(
            "held_calls_total",
            "Calls not sent because their run is held: stop, pause, ask, on_trouble.",
            "action",
        )
        self.raw_dropped = self.counter(
            "raw_calls_dropped_total", "Calls that could not be kept as sent and received."
        )

    def counter(self, name: str, text: str, labels: str = "") -> Counter:
        """Declare a counter, and the names of its labels."""
        return Counter(f"gateway_{name}", text, labels.split(), registry=self.registry)

    def gauge(self, name: str, text: str) -> Gauge:
        """Declare a value that goes up and down."""
        return Gauge(f"gateway_{name}", text, registry=self.registry)

    def histogram(
        self, name: str, text: str, *, buckets: Sequence[float], labels: str = ""
    ) -> Histogram:
        """Declare a distribution, its buckets, and the names of its labels."""
        named = f"gateway_{name}"
        names = labels.split()
        return Histogram(named, text, names, buckets=buckets, registry=self.registry)

    def observe(
        self, route: str, status: int, lane: str, duration_s: float, overhead_s: float
    ) -> None:
        """Count one finished request; label look-ups are cached, they cost more than counting."""
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

    def count_tokens(self, usage: TokenUsage, *, estimated: bool) -> None:
        """Count the tokens of one call, apart where they are estimated."""
        counter = self.tokens
        if estimated:
            counter = self.estimated_tokens
            self.estimated_calls.inc()
        for direction, count in (("input", usage.input), ("output", usage.output)):
            if count:
                counter.labels(direction).inc(count)
        if usage.cached:
            self.cached_tokens.inc(usage.cached)

    def charge(self, cost: float, unsteered: float | None) -> None:
        """Count a call's cost in US dollars, and that of the requested model: equal when unknown,
        so that the difference of the two counters is the saving that is known."""
        self.cost.inc(cost)
        self.cost_unsteered.inc(cost if unsteered is None else unsteered)

    def render(self) -> bytes:
        """The exposition text."""
        return generate_latest(self.registry)


_WAIT_S = 1.0  # longest wait for another worker; one that does not answer is left out


@dataclass(eq=False)
class SharedMetrics:
    """One worker's part of the metrics."""

    index: int  # of this worker, from 0
    count: int  # of all workers
    path: Callable[[int], str]  # names a worker's socket
    render: Callable[[], bytes]  # gives this worker's exposition text
    # answers the other workers; None before the start
    _server: asyncio.Server | None = field(default=None, init=False)

    async def start(self) -> None:
        """Give this worker's metrics to the others when they ask."""
        self._server = await asyncio.start_unix_server(self._serve, self.path(self.index))

    def close(self) -> None:
        """Stop giving them."""
        if self._server is not None:
            self._server.close()

    async def collect(self) -> bytes:
        """The exposition text of all workers that answer."""
        others = [index for index in range(self.count) if index != self.index]
        texts = await asyncio.gather(*map(self._ask, others))
        found = {i: text for i, text in zip(others, texts, strict=True) if text is not None}
        return merged({**found, self.index: self.render()})

    async def _serve(self, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(self.render())
        await writer.drain()
        writer.close()

    async def _ask(self, index: int) -> bytes | None:
        try:
            async with asyncio.timeout(_WAIT_S):
                reader, writer = await asyncio.open_unix_connection(self.path(index))
                text = await reader.read()
                writer.close()
                return text
        except (OSError, TimeoutError):
            return None


def merged(texts: Mapping[int, bytes]) -> bytes:
    """Expositions by worker as one, in the order of the workers, each series with its worker."""
    families: dict[str, list[str]] = {}
    for index, text in sorted(texts.items()):
        known = set(families)
        family = ""
        for line in text.decode().splitlines():
            if line.startswith("#"):
                family = line.split(" ", 3)[2]
                if family not in known:
                    families.setdefault(family, []).append(line)
            elif line:
                families.setdefault(family, []).append(_labelled(line, index))
    lines = [line for family in families.values() for line in family]
    return ("\n".join(lines) + "\n").encode()


def _labelled(series: str, worker: int) -> str:
    name, _, value = series.partition(" ")
    if "{" in name:
        name, _, rest = series.partition("{")
        return f'{name}{{worker="{worker}",{rest}'
    return f'{name}{{worker="{worker}"}} {value}'


UnsteeredReason = Literal["deadline", "timeout", "store", "size", "encoding", "error"]
"""Reason why a call had no decision, see UNSTEERED_WORDS: `deadline` is its own work longer than
`steering.deadline_ms`, `timeout` a wait longer than `steering.max_wait_ms`."""

UNSTEERED_WORDS: Texts = {
    "deadline": "steering took too long",
    "timeout": "waited too long",
    "store": "the store failed",
    "size": "too large or too deep to read",
    "encoding": "compressed, and cannot be read",
    "error": "steering failed",
}
"""The reasons in words, for people."""


@dataclass(eq=False)
class UnsteeredCalls:
    """Counts calls without a decision, as a metric and for the health summary."""

    metric: Counter  # by reason
    # those whose conversation was not found, so that no run has them
    unrecorded: Tally[str] = field(default_factory=Tally, init=False)

    def count(self, reason: UnsteeredReason, *, recorded: bool) -> None:
        """Count one call."""
        self.metric.labels(reason, "yes" if recorded else "no").inc()
        if not recorded:
            self.unrecorded[reason] += 1
