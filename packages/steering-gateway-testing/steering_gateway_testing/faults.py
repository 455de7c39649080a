"""Faults: an answer turned into the exchange of a call that goes wrong."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Protocol

from steering_gateway_testing.exchange import (
    LAST_CHUNK,
    Answer,
    Ending,
    FramedAnswer,
    chunk,
    frame,
    head,
)
from steering_gateway_testing.values import Fault, FaultKind, Reply


class ErrorShape(Protocol):
    """How a dialect writes errors."""

    def error(self, status: int, kind: str, code: str | None, message: str, /) -> bytes:
        """The body of an error answer."""

    def error_event(self, kind: str, code: str | None, message: str, /) -> bytes:
        """An error in the middle of a stream."""


_K = FaultKind
ERRORS: Mapping[FaultKind, tuple[int, str, str | None, str]] = {
    _K.RATE_LIMIT: (429, "rate_limit_error", "rate_limit_exceeded", "Rate limit reached."),
    _K.SERVER_ERROR: (500, "server_error", None, "The server had an error."),
    _K.UNAVAILABLE: (503, "server_error", None, "The engine is currently overloaded."),
    _K.OVERLOADED: (529, "overloaded_error", None, "Overloaded"),
    _K.UNAUTHORIZED: (401, "authentication_error", "invalid_api_key", "Incorrect API key."),
    _K.FORBIDDEN: (403, "permission_error", "forbidden", "No access to this model."),
    _K.NOT_FOUND: (404, "not_found_error", "model_not_found", "The model does not exist."),
    _K.BAD_REQUEST: (400, "invalid_request_error", "invalid_value", "Invalid request."),
    _K.CONTEXT_LENGTH: (
        400,
        "invalid_request_error",
        "context_length_exceeded",
        "prompt is too long: this model's maximum context length is 128000 tokens, "
        "your messages resulted in 130005 tokens.",
    ),
    _K.CONTENT_FILTER_ERROR: (
        400,
        "invalid_request_error",
        "content_filter",
        "The prompt was blocked by the content filter.",
    ),
}
"""Status, type, code and message of the faults that are plain error answers."""

HTML_PAGE = b"<html><head><title>502 Bad Gateway</title></head><body>Bad Gateway</body></html>"
HTML_TYPE = "text/html"
NOT_UTF8 = b"\xff\xfe\xc3"
"""Bytes that occur in no UTF-8 text: two that never do, and a lead byte without its follower."""
_MARK = "\ue000"
"""Private-use character that is rendered where `NOT_UTF8` shall be."""
MID_STREAM_ERROR = "The server had an error while processing your request."


def spoilt_reply(fault: Fault, reply: Reply) -> Reply:
    """The reply to render, for the faults that lie in the reply itself."""
    if fault.kind is _K.CONTENT_FILTER:
        return replace(reply, finish_reason="content_filter")
    if fault.kind is _K.INVALID_UTF8:
        return replace(reply, content=f"{reply.content or ''} {_MARK}")
    if fault.kind is _K.HUGE_BODY:
        size = int(fault.size_mb * 2**20)
        return replace(reply, content="x" * size, chunks=max(1, size // 65_536))
    return reply


def is_error(fault: Fault) -> bool:
    """Whether the answer is an error made without a reply."""
    return fault.kind in ERRORS or fault.kind in (_K.HTML_ERROR, _K.EMPTY_BODY)


def error_answer(fault: Fault, shape: ErrorShape) -> Answer:
    """The answer of a fault for which `is_error` holds."""
    if fault.kind is _K.EMPTY_BODY:
        return Answer(pieces=(), headers=fault.headers)
    if fault.kind is _K.HTML_ERROR:
        status = fault.status or 502
        return Answer(
            pieces=(HTML_PAGE,), status=status, content_type=HTML_TYPE, headers=fault.headers
        )
    status, kind, code, message = ERRORS[fault.kind]
    status, message = fault.status or status, fault.message or message
    headers = dict(fault.headers)
    if fault.retry_after is not None and status in (429, 503, 529):
        headers["retry-after"] = fault.retry_after
    body = shape.error(status, kind, code, message)
    return Answer(pieces=(body,), status=status, headers=headers)


def spoil(fault: Fault, answer: Answer, shape: ErrorShape) -> FramedAnswer:
    """The exchange of `answer` going wrong in the way of `fault`."""
    match fault.kind:
        case _K.DROP_BEFORE_RESPONSE:
            return FramedAnswer(steps=(), ending=_drop(fault))
        case _K.SLOW_FIRST_BYTE:
            return frame(answer, first_s=1.0 if fault.delay_s is None else fault.delay_s)
        case _K.WRONG_CONTENT_TYPE:
            return frame(replace(answer, content_type=HTML_TYPE))
        case _K.WRONG_CONTENT_LENGTH:
            body = b"".join(answer.pieces)
            start = head(answer, length=len(body) + 100)
            return FramedAnswer(steps=(start + body,), ending=Ending.CLOSE)
        case _K.STALL | _K.DROP_MID_BODY:
            return _interrupted(fault, answer)
        case _K.CLEAN_CUT | _K.ERROR_EVENT | _K.MALFORMED_JSON | _K.MALFORMED_SSE | _K.INVALID_UTF8:
            return frame(replace(answer, pieces=_spoilt_pieces(fault, answer, shape)))
        case _:
            return frame(answer)


def _interrupted(fault: Fault, answer: Answer) -> FramedAnswer:
    """Sent up to a point; then silence, or the end of the connection."""
    if answer.streamed:
        at = _position(fault, answer)
        start = head(answer) + b"".join(map(chunk, answer.pieces[:at]))
        rest = b"".join(map(chunk, answer.pieces[at:])) + LAST_CHUNK
    else:
        body = b"".join(answer.pieces)
        middle = len(body) // 2
        start, rest = head(answer, length=len(body)) + body[:middle], body[middle:]
    if fault.kind is _K.DROP_MID_BODY:
        return FramedAnswer(steps=(start,), ending=_drop(fault))
    if fault.delay_s is None:
        return FramedAnswer(steps=(start,), ending=Ending.SILENCE)
    return FramedAnswer(steps=(start, float(fault.delay_s), rest))


def _spoilt_pieces(fault: Fault, answer: Answer, shape: ErrorShape) -> tuple[bytes, ...]:
    if fault.kind is _K.ERROR_EVENT and not answer.streamed:
        return (shape.error(500, "server_error", None, _message(fault)),)
    if fault.kind is _K.INVALID_UTF8:
        return tuple(map(_not_utf8, answer.pieces))
    at = _position(fault, answer)
    before, after = answer.pieces[:at], answer.pieces[at:]
    struck = after[0] if after else b""
    middle = len(struck) // 2
    match fault.kind:
        case _K.CLEAN_CUT:
            return before if answer.streamed else (struck[:middle],)
        case _K.ERROR_EVENT:
            return (*before, shape.error_event("server_error", None, _message(fault)))
        case _K.MALFORMED_SSE if answer.streamed:
            return (*before, b"dta {\n" + struck[:middle] + b"\n\x00: :\r\r\n\n", *after[1:])
        case _ if answer.streamed:
            return (*before, struck[:middle] + b"\n\n", *after[1:])
        case _:
            return (struck[:middle],)


def _message(fault: Fault) -> str:
    return fault.message or MID_STREAM_ERROR


def _not_utf8(piece: bytes) -> bytes:
    return piece.replace(_MARK.encode(), NOT_UTF8)


def _position(fault: Fault, answer: Answer) -> int:
    return min(fault.after, answer.finish_at) if answer.streamed else 0


def _drop(fault: Fault) -> Ending:
    return Ending.RESET if fault.reset else Ending.CLOSE
