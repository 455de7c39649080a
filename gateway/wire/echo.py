"""Gives an answer that repeats a field of the request the value that the client sent. Pure."""

from __future__ import annotations

import json
import re
from typing import Final

from gateway.wire.sse import SSEDecoder

_FIELD: Final = re.compile(r'"instructions"\s{0,99}:\s{0,99}(?=")')
_NAME: Final = b'"instructions"'
_STRING: Final = json.JSONDecoder()


class EchoFilter:
    """Replaces an echo of the `instructions` that were sent by the client's own; no other byte.

    `own` None: the client sent none.
    """

    __slots__ = ("_decoder", "_own", "_sent")

    def __init__(self, sent: str, own: str | None) -> None:
        self._sent = sent
        self._own = json.dumps(own)
        self._decoder = SSEDecoder()

    @property
    def size(self) -> int:
        """Characters that it keeps."""
        return len(self._sent) + len(self._own)

    def fresh(self) -> EchoFilter:
        """The same filter, for another answer."""
        return EchoFilter(self._sent, json.loads(self._own))

    def feed(self, chunk: bytes) -> bytes:
        """The bytes of a stream to send, of `chunk` and of what was held back before it."""
        if chunk.endswith(b"\n\n") and self._decoder.idle and _NAME not in chunk:
            return chunk
        return b"".join(self.whole(event.raw) for event in self._decoder.feed(chunk))

    def flush(self) -> bytes:
        """The bytes held back at the end of the stream."""
        return b"".join(self.whole(event.raw) for event in self._decoder.flush())

    def whole(self, body: bytes) -> bytes:
        """A body, or one event, with the client's own value."""
        if _NAME not in body:
            return body
        text = body.decode("utf-8", "surrogateescape")
        out, done = [], 0
        for found in _FIELD.finditer(text):
            try:
                value, end = _STRING.raw_decode(text, found.end())
            except ValueError:
                continue
            if value == self._sent:
                out += [text[done : found.end()], self._own]
                done = end
        if not out:
            return body
        return "".join([*out, text[done:]]).encode("utf-8", "surrogateescape")
