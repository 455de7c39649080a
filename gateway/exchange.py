"""One request and what became of it: the source of its log line, its metrics and its headers."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Exchange:
    """Filled in on the request's way; the edge turns it into one canonical log line."""

    method: str
    path: str
    request_id: str
    client_request_id: bool
    """Whether the client brought the id itself; then the answer carries this one."""

    started: float = field(default_factory=time.perf_counter)
    """Monotonic seconds."""

    route: str = "unknown"
    tenant: str = ""
    status: int = 0
    lane: str = "none"
    deployment: str = ""
    provider: str = ""
    """Whose model it was: `openai`, `anthropic`, ..."""

    trace_parent: str = ""
    """The caller's span, as its `traceparent` header names it."""

    model: str = ""
    """As requested."""

    model_asked: str = ""
    """As sent upstream."""

    streamed: bool = False
    attempts: list[str] = field(default_factory=list)
    waited_s: float = 0.0
    """Spent waiting for the client's body and for the upstream: not the gateway's own time."""

    first_byte_s: float | None = None
    """From the request's arrival to the upstream's answer."""

    overhead_s: float = 0.0
    """The gateway's own share up to the answer's start."""

    upstream_request_id: str = ""
    """The id of the upstream's own, when it gave one."""

    error: str = ""
    error_body: Callable[[Any], bytes] | None = None
    """How the client's dialect writes an error made here; None for OpenAI's form."""

    usage: dict[str, Any] | None = None
    client_gone: bool = False
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    """What the gateway adds to the answer's headers."""

    notes: dict[str, Any] = field(default_factory=dict)
    """More for the log line: what steering found."""

    def answer_starts(self) -> None:
        """The answer's head is about to leave: what has passed so far without waiting is ours."""
        self.overhead_s = max(0.0, time.perf_counter() - self.started - self.waited_s)
        self.headers.append((b"x-gateway-overhead-ms", b"%.3f" % (self.overhead_s * 1000)))

    def own_ms(self) -> float:
        """The gateway's own share, up to the answer's start or, before that, up to now."""
        so_far = max(0.0, self.elapsed_s() - self.waited_s)
        return (self.overhead_s or so_far) * 1000

    def elapsed_s(self) -> float:
        """Since the request arrived."""
        return time.perf_counter() - self.started
