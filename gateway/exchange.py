"""The facts of one request and its result: the source of its log line, metrics, record and headers.

Filled in while the request is handled; the edge turns them into one log line."""

import time
from collections.abc import Awaitable, Callable
from typing import Any, Literal

from msgspec import Struct, field

from gateway.values import FieldDict, Fields, Value
from gateway.wire.upstream_errors import Refusal
from gateway.wire.usage import TokenUsage, token_usage

# Why an answer was not read: no content; an unknown or broken compression; more than
# `server.max_buffered_response_mb`; neither the JSON nor the events of its dialect.
Unread = Literal["empty", "encoding", "size", "form"]


class UpstreamReply(Value):
    """The upstream's complete answer; None for what could not be read."""

    completion: FieldDict | None = None  # in the form of a chat completion
    usage: FieldDict | None = None  # as the upstream reported it
    # of an answer that is made in the background and not complete yet
    pending_id: str | None = None
    unread: Unread | None = None  # why the content could not be read
    failure: Refusal | None = None  # the error that the upstream reported under a status of success


class RequestInfo(Struct, kw_only=True):
    """The request as it arrived, and who sent it."""

    tenant: str = ""  # of the gateway key
    key: str = ""  # name of the gateway key; "" without one
    labels: dict[str, str] = {}  # the key's team and owner, by name
    method: str  # of HTTP
    path: str  # as the client sent it, decoded, without the query
    id: str  # the client's `x-request-id`, or a new one
    model: str = ""  # that it names; "" until it is read
    streamed: bool = False  # the client asked for a stream


class UpstreamInfo(Struct, kw_only=True):
    """The upstream call that was made for the request."""

    lane: str = "none"  # native or litellm; none until it is chosen
    deployment: str = ""  # `model_name`, or `default`; a closed label for metrics
    provider: str = ""  # the model's, such as `openai`
    model: str = ""  # as sent; "" until it is chosen
    attempts: list[str] = []  # each sending, with its target and how it ended
    # as the upstream reported it, or estimated from the texts; None when neither is known
    usage: FieldDict | None = None
    tokens: TokenUsage = TokenUsage()  # the counts in `usage`
    usage_estimated: bool = False  # `usage` is estimated

    def bill(
        self,
        usage: FieldDict | None,
        answer: Fields | None = None,
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
    """The answer to the client."""

    status: int = 0  # of HTTP; 0 before it is sent
    error: str = ""  # label of the error; "" for none
    # how the client's dialect writes a gateway error; None for OpenAI's form
    error_body: Callable[[Any], bytes] | None = None
    headers: list[tuple[bytes, bytes]] = []  # those that the gateway adds
    client_gone: bool = False  # the client disconnected before the end
    upstream_id: str = ""  # the upstream's own id of the request; "" if it sent none
    # sends the head of a stream, and pings until its content comes; None for other answers
    begin: Callable[[], Awaitable[None]] | None = None
    begun: bool = False  # `begin` has sent the head


class Timing(Struct, kw_only=True):
    """The time that a request took, by what it was spent on."""

    # arrival, in seconds of the monotonic clock
    started: float = field(default_factory=time.perf_counter)
    waited_s: float = 0.0  # seconds of waiting for the client's body and the upstream
    # seconds from the arrival to the start of the upstream's answer; None before that
    first_byte_s: float | None = None
    # the gateway's own seconds up to the start of the answer; 0.0 before that
    overhead_s: float = 0.0

    def stop_overhead(self) -> None:
        """Note the gateway's own time when the head of the answer is about to be sent."""
        self.overhead_s = self.own_s()

    def own_s(self) -> float:
        """The gateway's own time up to the start of the answer, or up to now before that."""
        return self.overhead_s or max(0.0, time.perf_counter() - self.started - self.waited_s)


class Exchange(Struct):
    """All facts of one request."""

    request: RequestInfo  # as it arrived
    route: str = "unknown"  # its label in metrics
    upstream: UpstreamInfo = field(default_factory=UpstreamInfo)  # the call that was made for it
    response: ResponseInfo = field(default_factory=ResponseInfo)  # the answer to the client
    timing: Timing = field(default_factory=Timing)  # seconds by what they were spent on
    notes: dict[str, Any] = {}  # further fields of the log line, from steering
    # attributes of the span that hold texts, with `otel.content`, or name a session, a person, or
    # an answer with its cost; never logged, and empty without a collector of spans
    texts: FieldDict = {}

    def start_response(self) -> None:
        """Note the gateway's own time, and add it to the headers of the answer."""
        self.timing.stop_overhead()
        overhead = b"%.3f" % (self.timing.overhead_s * 1000)
        self.response.headers.append((b"x-gateway-overhead-ms", overhead))
