"""Metrics of `metrics.toml` and of the features, with labels from closed sets only.

The counters and histograms leave out checks that prometheus_client repeats in each call: a request
counts some ten things, and their labels and amounts are valid by construction."""

import asyncio
from bisect import bisect_left
from collections import Counter as Tally
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import prometheus_client
from prometheus_client import CollectorRegistry, Gauge, Info, ProcessCollector, generate_latest

from gateway import __version__
from gateway.data_files import read_toml
from gateway.hooks import given
from gateway.values import Texts
from gateway.wire.usage import TokenUsage

Declared = TypeVar("Declared")


class Counter(prometheus_client.Counter):
    """A counter that is asked for by its labels in their order, and for amounts of at least 0."""

    def labels(self, *labelvalues: Any, **named: Any) -> "Counter":
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


_TABLE = read_toml(__package__, "metrics.toml")
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Metrics:
    """One registry per gateway, so that two can run in one process. Each row of the table is an
    attribute."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        about = Info("gateway_build", "Version of the gateway.", registry=self.registry)
        about.info({"version": __version__})
        for name, row in _TABLE.items():
            declare = getattr(self, row["kind"])
            setattr(self, name, declare(**{key: row[key] for key in row if key != "kind"}))
        self._duration = cache(self.duration.labels)
        self._overhead = cache(self.overhead.labels)
        self._of_features = {kind: kind(self) for kind in given("metrics")}

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """A row of the table."""

    def of(self, kind: type[Declared]) -> Declared:
        """The metrics of a feature, by the class that declares them."""
        found: Declared = self._of_features[kind]
        return found

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
        self.requests.labels(route, str(status), lane).inc()
        self._duration(route).observe(duration_s)
        self._overhead(route).observe(overhead_s)

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


# Reason why a call had no decision, see UNSTEERED_WORDS: `deadline` is its own work longer than
# `steering.deadline_ms`, `timeout` a wait longer than `steering.max_wait_ms`.
UnsteeredReason = Literal["deadline", "timeout", "store", "size", "encoding", "error"]

# The reasons in words, for people.
UNSTEERED_WORDS: Texts = {
    "deadline": "steering took too long",
    "timeout": "waited too long",
    "store": "the store failed",
    "size": "too large or too deep to read",
    "encoding": "compressed, and cannot be read",
    "error": "steering failed",
}


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
