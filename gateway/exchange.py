"""One request and its result: the source of its log line, metrics, record and headers."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from gateway.wire.usage import TokenUsage, token_usage


@dataclass(slots=True, kw_only=True)
class RequestInfo:
    """The request as it arrived."""

    method: str
    path: str
    id: str
    id_from_client: bool
    """Whether the client sent the id; then the answer repeats it."""

    trace_parent: str = ""
    """The `traceparent` header."""

    tenant: str = ""
    key: str = ""
    """The name of the gateway key that was sent."""

    operator: bool = False
    """Whether the caller may change what holds for the call: budgets, stops."""

    model: str = ""
    streamed: bool = False
    """Whether the client asked for a stream."""


@dataclass(slots=True, kw_only=True)
class UpstreamInfo:
    """The upstream call that was made for the request."""

    lane: str = "none"
    deployment: str = ""
    provider: str = ""
    """The model's provider: `openai`, `anthropic`, ..."""

    model: str = ""
    """As sent upstream; empty until the model is chosen."""

    attempts: list[str] = field(default_factory=list)
    request_id: str = ""
    """The upstream's own id of the request, if it sent one."""

    usage: dict[str, Any] | None = None
    """As the upstream reported it, or estimated; None when neither is known."""

    tokens: TokenUsage = field(default_factory=TokenUsage)
    """The counts in `usage`."""

    usage_estimated: bool = False
    """Whether `usage` is estimated from the texts."""

    def bill(self, usage: dict[str, Any] | None, *, estimated: bool = False) -> None:
        """Note what the upstream reported; it is read once."""
        self.usage, self.tokens, self.usage_estimated = usage, token_usage(usage), estimated


@dataclass(slots=True, kw_only=True)
class ResponseInfo:
    """The answer to the client."""

    status: int = 0
    error: str = ""
    """The label of the error, empty for none."""

    error_body: Callable[[Any], bytes] | None = None
    """How the client's dialect writes a gateway error; None for OpenAI's form."""

    headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    """Headers that the gateway adds."""

    client_gone: bool = False


@dataclass(slots=True, kw_only=True)
class Timing:
    """The time that a request took, by what it was spent on, in seconds."""

    started: float = field(default_factory=time.perf_counter)
    """Arrival, on the monotonic clock."""

    waited_s: float = 0.0
    """Time spent waiting for the client's body and for the upstream."""

    first_byte_s: float | None = None
    """From the arrival of the request to the start of the upstream's answer."""

    overhead_s: float = 0.0
    """The gateway's own time up to the start of the answer; 0.0 before that."""

    def stop_overhead(self) -> None:
        """Note the gateway's own time when the head of the answer is about to be sent."""
        self.overhead_s = self.own_s()

    def own_s(self) -> float:
        """The gateway's own time until now."""
        return max(0.0, self.elapsed_s() - self.waited_s)

    def own_ms(self) -> float:
        """The gateway's own time in ms, up to the start of the answer, or up to now before that."""
        return (self.overhead_s or self.own_s()) * 1000

    def elapsed_s(self) -> float:
        """Time since the request arrived."""
        return time.perf_counter() - self.started


@dataclass(slots=True)
class Exchange:
    """Filled in while the request is handled; the edge turns it into one log line."""

    request: RequestInfo
    route: str = "unknown"
    """The label of the route in metrics."""

    upstream: UpstreamInfo = field(default_factory=UpstreamInfo)
    response: ResponseInfo = field(default_factory=ResponseInfo)
    timing: Timing = field(default_factory=Timing)
    notes: dict[str, Any] = field(default_factory=dict)
    """Further fields of the log line, from steering."""

    texts: dict[str, str] = field(default_factory=dict)
    """Attributes of the span that hold texts; never logged. Empty unless `otel.content`."""

    def start_response(self) -> None:
        """Note the gateway's own time, and add it to the headers of the answer."""
        self.timing.stop_overhead()
        overhead = b"%.3f" % (self.timing.overhead_s * 1000)
        self.response.headers.append((b"x-gateway-overhead-ms", overhead))
