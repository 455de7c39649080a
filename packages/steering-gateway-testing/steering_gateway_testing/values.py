"""The entries of a script: replies, tool calls, usage and faults."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """One call the scripted model makes.

    `arguments` is the text as the model would emit it, or a mapping that is serialised. `id` None
    gives a deterministic id. `fragments` is the number of pieces the arguments are streamed in.
    `namespace` is that of a tool of the Responses API which has one.
    """

    name: str = field(kw_only=False)
    arguments: str | Mapping[str, Any] = field(kw_only=False, default="{}")
    id: str | None = None
    fragments: int = 4
    namespace: str = ""

    @property
    def text(self) -> str:
        """The arguments as JSON text (or as whatever text the script gave)."""
        if isinstance(self.arguments, str):
            return self.arguments
        return orjson.dumps(self.arguments).decode()

    @property
    def value(self) -> Any:
        """The arguments as a JSON value; text that is not JSON is wrapped as `{"input": text}`."""
        if not isinstance(self.arguments, str):
            return dict(self.arguments)
        try:
            return orjson.loads(self.arguments)
        except orjson.JSONDecodeError:
            return {"input": self.arguments}


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Tokens a reply reports. `prompt_tokens` includes the cached and the cache-written ones."""

    prompt_tokens: int = 12
    completion_tokens: int = 8
    cached_tokens: int = 0
    cache_write_tokens: int = 0
    reasoning_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Reply:
    """What the scripted model answers, in whichever dialect and mode it is asked.

    Replies compare by identity, so that one used many times is rendered once.

    content: text, or None for a reply without text.
    reasoning: shown as `reasoning_content`, thinking block or reasoning item.
    finish_reason: in chat terms (stop, length, tool_calls, content_filter); None picks one.
    alternatives: further choices; `n` in a chat request repeats the reply when there are fewer.
    usage: None leaves usage out.
    chunks: number of content deltas of a stream; None gives one per word.
    chunk_delay_s: pause between stream events; 0 yields one write per event, None writes at once.
    first_byte_delay_s: pause before the status line.
    write_bytes: re-cut a stream into writes of this many bytes, ignoring event borders.
    interleave: stream the fragments of parallel tool calls in turn instead of call by call.
    extra: unknown fields added to the body and to every chunk; `message_extra` to the message
    and to the first delta; both may also replace known fields.
    headers: further response headers. status, content_type: replace the usual ones.
    raw: the body byte for byte, instead of a rendered one; a tuple is streamed piece by piece.
    id, model: None gives a numbered id and echoes the requested model.
    """

    content: str | None = field(kw_only=False, default=None)
    tool_calls: tuple[ToolCall, ...] = ()
    reasoning: str = ""
    signature: str = "c2NyaXB0ZWQtc2lnbmF0dXJl"
    refusal: str | None = None
    finish_reason: str | None = None
    alternatives: tuple[Reply, ...] = ()
    usage: Usage | None = field(default_factory=Usage)
    chunks: int | None = None
    chunk_delay_s: float | None = None
    first_byte_delay_s: float = 0.0
    write_bytes: int | None = None
    interleave: bool = False
    extra: Mapping[str, Any] = field(default_factory=dict)
    message_extra: Mapping[str, Any] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    status: int = 200
    content_type: str | None = None
    raw: bytes | tuple[bytes, ...] | None = None
    id: str | None = None
    model: str | None = None

    @property
    def finish(self) -> str:
        """The finish reason in chat terms."""
        return self.finish_reason or ("tool_calls" if self.tool_calls else "stop")


class FaultKind(enum.StrEnum):
    """How a call goes wrong. The value is the name on the command line."""

    RATE_LIMIT = "rate-limit"  # 429 with retry-after
    SERVER_ERROR = "server-error"  # 500
    UNAVAILABLE = "unavailable"  # 503
    OVERLOADED = "overloaded"  # 529, as Anthropic answers under load
    UNAUTHORIZED = "unauthorized"  # 401
    FORBIDDEN = "forbidden"  # 403
    NOT_FOUND = "not-found"  # 404, unknown model
    BAD_REQUEST = "bad-request"  # 400
    CONTEXT_LENGTH = "context-length"  # 400, prompt too long
    CONTENT_FILTER_ERROR = "content-filter-error"  # 400, prompt refused by the filter
    CONTENT_FILTER = "content-filter"  # a reply whose finish reason is the filter
    HTML_ERROR = "html-error"  # 502 with a proxy's web page
    SLOW_FIRST_BYTE = "slow-first-byte"  # `delay_s` before the status line
    STALL = "stall"  # silence for `delay_s` in the middle, then the rest
    DROP_BEFORE_RESPONSE = "drop-before-response"  # connection closed without an answer
    DROP_MID_BODY = "drop-mid-body"  # connection closed in the middle of body or stream
    CLEAN_CUT = "clean-cut"  # HTTP ends well, but before the finish reason
    ERROR_EVENT = "error-event"  # error event in the stream; not streaming: status 200, error body
    MALFORMED_JSON = "malformed-json"  # one event, or the body, is half a JSON text
    MALFORMED_SSE = "malformed-sse"  # lines that are no event-stream fields
    WRONG_CONTENT_TYPE = "wrong-content-type"  # the right body labelled text/html
    WRONG_CONTENT_LENGTH = "wrong-content-length"  # more bytes promised than sent
    INVALID_UTF8 = "invalid-utf8"  # bytes that no UTF-8 text has
    HUGE_BODY = "huge-body"  # content of `size_mb`
    EMPTY_BODY = "empty-body"  # status 200 and nothing else


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Fault:
    """A call that goes wrong `times` times in a row.

    after: stream events sent before the fault strikes (at most up to the finish reason); a body
    that is not streamed is struck in its middle.
    delay_s: length of a slow first byte or a stall; a stall of None never ends.
    reset: drop with a TCP reset instead of an orderly end; what the client had not read is lost.
    retry_after: header of error answers; None leaves it out. `status` and `message` replace the
    usual ones of an error answer. size_mb: content of a huge body, in 2**20 bytes.
    reply: the reply that is spoilt; None takes the upstream's default.
    """

    kind: FaultKind = field(kw_only=False)
    times: int = 1
    after: int = 3
    delay_s: float | None = None
    reset: bool = False
    retry_after: str | None = "1"
    status: int | None = None
    message: str | None = None
    size_mb: float = 8.0
    headers: Mapping[str, str] = field(default_factory=dict)
    reply: Reply | None = None

    def __post_init__(self) -> None:
        if self.times < 1:
            raise ValueError(f"times: must be at least 1, got {self.times!r}")
        if self.after < 0:
            raise ValueError(f"after: must not be negative, got {self.after!r}")
