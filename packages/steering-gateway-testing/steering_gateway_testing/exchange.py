"""One answer as the connection plays it: bytes to write, pauses, and how it ends."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from http import HTTPStatus

ID_MARK = b"~~~ID~~~"
"""Replaced by the request number in rendered bytes; of equal length, so that sizes stay valid."""

JSON_TYPE = "application/json"
SSE_TYPE = "text/event-stream; charset=utf-8"

_BODILESS = (204, 304)
"""Statuses without a body, so that even the end of a chunked one is too much. Source: RFC 9112
section 6.3."""


class Ending(enum.Enum):
    """What happens after the last byte."""

    KEEP = "keep"  # complete; the connection stays open for the next request
    CLOSE = "close"  # orderly end of the connection
    RESET = "reset"  # TCP reset
    SILENCE = "silence"  # nothing more, until the client goes away


@dataclass(frozen=True, slots=True, kw_only=True)
class FramedAnswer:
    """Steps are played in order: bytes are written, a float is a pause in seconds."""

    steps: tuple[bytes | float, ...]
    ending: Ending = Ending.KEEP

    def numbered(self, sequence: int) -> FramedAnswer:
        """The same exchange with the request number in place of `ID_MARK`."""
        steps = (_numbered(s, sequence) if isinstance(s, bytes) else s for s in self.steps)
        return FramedAnswer(steps=tuple(steps), ending=self.ending)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A rendered answer before it is framed: either one body or a stream of pieces.

    finish_at: index of the first piece that carries the finish reason.
    """

    pieces: tuple[bytes, ...]
    streamed: bool = False
    finish_at: int = 0
    status: int = 200
    content_type: str = JSON_TYPE
    headers: Mapping[str, str] = field(default_factory=dict)

    def numbered(self, sequence: int) -> Answer:
        """The same answer with the request number in place of `ID_MARK`, before it is cut up."""
        return replace(self, pieces=tuple(_numbered(piece, sequence) for piece in self.pieces))


def frame(answer: Answer, *, delay_s: float | None = None, first_s: float = 0.0) -> FramedAnswer:
    """The exchange that delivers `answer` whole."""
    if answer.status in _BODILESS:
        answer = replace(answer, pieces=(), streamed=False)
    steps: list[bytes | float] = [float(first_s)] if first_s else []
    if not answer.streamed:
        body = b"".join(answer.pieces)
        return FramedAnswer(steps=(*steps, head(answer, length=len(body)) + body))
    parts = [head(answer), *map(chunk, answer.pieces), LAST_CHUNK]
    if delay_s is None:
        return FramedAnswer(steps=(*steps, b"".join(parts)))
    return FramedAnswer(steps=(*steps, *spaced(parts, delay_s)))


def without_body(exchange: FramedAnswer) -> FramedAnswer:
    """What a HEAD request gets: the same head, and nothing after it."""
    steps: list[bytes | float] = []
    for step in exchange.steps:
        if isinstance(step, bytes):
            start = step.partition(b"\r\n\r\n")[0]
            return FramedAnswer(steps=(*steps, start + b"\r\n\r\n"), ending=exchange.ending)
        steps.append(step)
    return exchange


def spaced(parts: Sequence[bytes], delay_s: float) -> Iterable[bytes | float]:
    """`parts` with a pause before each but the first and the last."""
    delay_s = float(delay_s)
    for index, part in enumerate(parts):
        if 0 < index < len(parts) - 1:
            yield delay_s
        yield part


def head(answer: Answer, *, length: int | None = None) -> bytes:
    """Status line and headers; without `length` the body is chunked."""
    lines = [
        f"HTTP/1.1 {answer.status} {_phrase(answer.status)}",
        f"content-type: {answer.content_type}",
        f"x-request-id: req_{ID_MARK.decode()}",
        f"request-id: req_{ID_MARK.decode()}",
        *(f"{name}: {value}" for name, value in answer.headers.items()),
        "transfer-encoding: chunked" if length is None else f"content-length: {length}",
    ]
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n"


def chunk(data: bytes) -> bytes:
    """`data` as one HTTP chunk; empty data gives nothing, as an empty chunk would end the body."""
    return b"%x\r\n%b\r\n" % (len(data), data) if data else b""


LAST_CHUNK = b"0\r\n\r\n"


def _numbered(data: bytes, sequence: int) -> bytes:
    return data.replace(ID_MARK, b"%08d" % (sequence % 100_000_000))


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Scripted"
