"""Reads what an answer says; one that cannot be read is relayed and recorded as unread."""

from __future__ import annotations

import re
from typing import Any, Final, Literal

import orjson
from msgspec import Struct

from gateway.dialects import Dialect
from gateway.dialects.base import StreamRead
from gateway.errors import BadRequest
from gateway.wire.parsing import parse_object
from gateway.wire.response_tee import ResponseWatch

Unread = Literal["empty", "encoding", "size", "form"]
"""Why an answer was not read: no content; an unknown or broken compression; more than
`server.max_buffered_response_mb`; neither the JSON nor the events of its dialect."""

_BOM: Final = b"\xef\xbb\xbf"
_SPACE: Final = b" \t\r\n"
_FIELD: Final = re.compile(rb"(?:data|event|id|retry)?:")
ENOUGH_TO_TELL: Final = len(b"event:")
"""Bytes of content, without a byte order mark and white space, that tell events from JSON."""


class UpstreamReply(Struct, frozen=True, kw_only=True):
    """The upstream's complete answer; None for what could not be read."""

    completion: dict[str, Any] | None
    usage: dict[str, Any] | None
    pending_id: str | None = None
    """The id of an answer that is made in the background and not complete yet."""

    unread: Unread | None = None
    """Why the answer was not read; None for one that was."""


def content_start(watch: ResponseWatch) -> bytes:
    """The content so far, without a byte order mark and white space before it."""
    return watch.content.removeprefix(_BOM).lstrip(_SPACE)


def looks_like_events(start: bytes) -> bool:
    """Whether content that begins so consists of server-sent events, whatever its label says."""
    return _FIELD.match(start) is not None


def read_body(
    dialect: Dialect, watch: ResponseWatch, usage: dict[str, Any] | None
) -> UpstreamReply:
    """A successful answer that is not a stream; `usage` as far as the lane knows it."""
    content = content_start(watch)
    if not content:
        return unread(watch, usage)
    try:
        body = parse_object(content, orjson.loads)
    except BadRequest:
        return _read_mislabelled(dialect, watch, usage)
    reported = body.get("usage")
    try:
        return UpstreamReply(
            completion=dialect.read_answer(body),
            usage=usage or (reported if isinstance(reported, dict) else None),
            pending_id=dialect.pending_id(body),
        )
    except Exception:  # an upstream may put anything anywhere, nested to any depth
        return unread(watch, usage)


def read_events(dialect: Dialect, content: bytes) -> StreamRead:
    """What the events so far contain; nothing, when they cannot be read."""
    try:
        return dialect.read_stream(content, orjson.loads)
    except Exception:  # see read_body
        return StreamRead()


def unread(watch: ResponseWatch, usage: dict[str, Any] | None) -> UpstreamReply:
    """The reply of an answer that cannot be read."""
    return UpstreamReply(completion=None, usage=usage, unread=_why(watch))


def _read_mislabelled(
    dialect: Dialect, watch: ResponseWatch, usage: dict[str, Any] | None
) -> UpstreamReply:
    read = read_events(dialect, watch.content)
    if read.ended or read.accepted:
        return UpstreamReply(completion=read.completion, usage=usage or read.usage)
    return unread(watch, usage)


def _why(watch: ResponseWatch) -> Unread:
    if watch.oversized:
        return "size"
    if watch.opaque or watch.cut:
        return "encoding"
    return "form" if content_start(watch) else "empty"
