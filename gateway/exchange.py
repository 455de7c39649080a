"""The facts of one request and its result: the source of its log line, metrics, record and headers.

Filled in while the request is handled; the edge turns them into one log line."""

import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Literal

from msgspec import Struct, field

from gateway.values import Value
from gateway.wire.refusal import Refusal
from gateway.wire.usage import TokenUsage, token_usage

Unread = Literal["empty", "encoding", "size", "form"]
"""Why an answer was not read: no content; an unknown or broken compression; more than
`server.max_buffered_response_mb`; neither the JSON nor the events of its dialect."""


class UpstreamReply(Value):
    """The upstream's complete answer in the form of a chat completion; None for what could not be
    read. `pending_id`: the id of an answer that is made in the background and not complete yet."""

    completion: dict[str, Any] | None = None
    usage: dict[str, Any] | None = None
    pending_id: str | None = None
    unread: Unread | None = None
    failure: Refusal | None = None  # the error that the upstream reported under a status of success


class Caller(Struct, kw_only=True):
    """Sender of a request. `key`: the name of its gateway key; `labels`: that one's team and
    owner."""

    tenant: str = ""
    key: str = ""
    labels: dict[str, str] = {}


class RequestInfo(Caller, kw_only=True):
    """The request as it arrived. `streamed`: the client asked for a stream."""

    method: str
    path: str
    id: str
    model: str = ""
    streamed: bool = False


class UpstreamInfo(Struct, kw_only=True):
    """The upstream call that was made for the request. `provider`: the model's, such as `openai`.
    `model`: as sent; empty until it is chosen. `usage`: as the upstream reported it, or
    `usage_estimated` from the texts; None when neither is known; `tokens`: the counts in it."""

    lane: str = "none"
    deployment: str = ""
    provider: str = ""
    model: str = ""
    attempts: list[str] = []
    usage: dict[str, Any] | None = None
    tokens: TokenUsage = TokenUsage()
    usage_estimated: bool = False

    def bill(
        self,
        usage: dict[str, Any] | None,
        answer: Mapping[str, Any] | None = None,
        *,
        estimated: bool = False,
    ) -> None:
        """Note what the upstream reported; it is read once. `answer`: may name the class of
        service, which OpenAI's usage does not."""
        if usage and isinstance(tier := (answer or {}).get("service_tier"), str):
            usage = {"service_tier": tier, **usage}
        self.usage = usage
        self.tokens = token_usage(usage)
        self.usage_estimated = estimated


class ResponseInfo(Struct, kw_only=True):
    """The answer to the client. `error`: the label of the error, empty for none. `error_body`: how
    the client's dialect writes a gateway error; None for OpenAI's form. `headers`: those that the
    gateway adds. `upstream_id`: the upstream's own id of it, if it sent one. `begin`:
    sends the head of a stream, and pings until its content comes; `begun`: it did."""

    status: int = 0
    error: str = ""
    error_body: Callable[[Any], bytes] | None = None
    headers: list[tuple[bytes, bytes]] = []
    client_gone: bool = False
    upstream_id: str = ""
    begin: Callable[[], Awaitable[None]] | None = None
    begun: bool = False


class Timing(Struct, kw_only=True):
    """The time that a request took, by what it was spent on, in seconds. `started`: arrival, on the
    monotonic clock. `waited_s`: for the client's body and the upstream. `first_byte_s`: from the
    arrival to the start of the upstream's answer. `overhead_s`: the gateway's own time up to the
    start of the answer; 0.0 before that."""

    started: float = field(default_factory=time.perf_counter)
    waited_s: float = 0.0
    first_byte_s: float | None = None
    overhead_s: float = 0.0

    def stop_overhead(self) -> None:
        """Note the gateway's own time when the head of the answer is about to be sent."""
        self.overhead_s = self.own_s()

    def own_s(self) -> float:
        """The gateway's own time up to the start of the answer, or up to now before that."""
        return self.overhead_s or max(0.0, time.perf_counter() - self.started - self.waited_s)


class Exchange(Struct):
    """All facts of one request. `route`: its label in metrics. `notes`: further fields of the log
    line, from steering. `texts`: attributes of the span that hold texts, with `otel.content`, or
    name a session or a person, and `evaluations`: those of its events; never logged, and empty
    without a collector of spans."""

    request: RequestInfo
    route: str = "unknown"
    upstream: UpstreamInfo = field(default_factory=UpstreamInfo)
    response: ResponseInfo = field(default_factory=ResponseInfo)
    timing: Timing = field(default_factory=Timing)
    notes: dict[str, Any] = {}
    texts: dict[str, str] = {}
    evaluations: list[dict[str, Any]] = []

    def start_response(self) -> None:
        """Note the gateway's own time, and add it to the headers of the answer."""
        self.timing.stop_overhead()
        overhead = b"%.3f" % (self.timing.overhead_s * 1000)
        self.response.headers.append((b"x-gateway-overhead-ms", overhead))
