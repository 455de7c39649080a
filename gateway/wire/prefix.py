"""Recognising a request that begins with the bytes of the one before.

Agents send their whole history at every call. A byte-wise equal prefix is an equal history, so the
old messages need neither be normalised nor hashed nor located again: what a call costs depends on
its new messages, not on the length of its history.
"""

from __future__ import annotations

from dataclasses import dataclass

from gateway.wire.request import ChatRequest, Span, array_spans, skip_space


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefix:
    """The bytes of a body up to the end of its last message, and where its messages stand."""

    raw: bytes
    spans: tuple[Span, ...]

    @property
    def count(self) -> int:
        """How many messages it holds."""
        return len(self.spans)

    def begins(self, request: ChatRequest) -> bool:
        """Whether `request` starts with these bytes, the last message being whole in it too.

        Not when its list may be given a second time behind them: the last one counts.
        """
        end = len(self.raw)
        if not request.raw.startswith(self.raw):
            return False
        if request.raw.find(b'"%b"' % request.list_key.encode(), end) >= 0:
            return False
        return request.raw[end : end + 64].lstrip()[:1] in (b",", b"]")

    def extended(self, request: ChatRequest) -> Prefix:
        """The prefix of a request that begins with this one; only its new messages are scanned."""
        tail = request.raw[len(self.raw) :].decode("utf-8", "surrogateescape")
        offset = self.spans[-1][1]
        # The text goes on inside the array; an opening bracket makes an array of the new part.
        at = skip_space(tail, 0)
        if tail[at] == "]":
            return self
        shift = offset + at
        new = [(s + shift, e + shift) for s, e in array_spans("[" + tail[at + 1 :], 0)]
        chars = new[-1][1] - offset
        raw = self.raw + tail[:chars].encode("utf-8", "surrogateescape")
        return Prefix(raw=raw, spans=(*self.spans, *new))


def prefix_of(request: ChatRequest) -> Prefix | None:
    """The prefix of a request none of which is known; None when it has no messages."""
    spans = request.message_spans
    if not spans:
        return None
    end = spans[-1][1]
    text = request.text[:end]
    raw = request.raw[:end] if text.isascii() else text.encode("utf-8", "surrogateescape")
    return Prefix(raw=raw, spans=tuple(spans))
