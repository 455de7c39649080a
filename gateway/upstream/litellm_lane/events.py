"""Event streams as LiteLLM's adapters can read them: an event that is no JSON ends a stream there.

The adapters read line by line and raise at the first line they do not understand, with the rest of
the answer still to come. Here such events are left out, and the others written in one plain form.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable

import orjson

from gateway.wire.response_tee import Inflater
from gateway.wire.sse import SSEDecoder, SSEEvent

_CODINGS = (b"gzip", b"x-gzip", b"deflate")
_MOST_AT_ONCE = 2**26  # bytes that one chunk may unpack to; no provider's chunk comes near


class ReadableEvents:
    """Bytes of an event stream in any split, compressed or not, to events an adapter can read."""

    __slots__ = ("_decoder", "_inflater")

    def __init__(self, content_encoding: bytes) -> None:
        self._decoder = SSEDecoder()
        self._inflater = Inflater() if content_encoding in _CODINGS else None

    @staticmethod
    def reads(content_type: bytes, content_encoding: bytes) -> bool:
        """Whether an answer consists of events, in a coding that can be undone."""
        readable = content_encoding in (b"", b"identity", *_CODINGS)
        return content_type.lower().startswith(b"text/event-stream") and readable

    def unpacked(self, chunk: bytes) -> bytes:
        """The chunk without its compression. Raises: ValueError when it is something else."""
        if self._inflater is None:
            return chunk
        try:
            return self._inflater.decompress(chunk, _MOST_AT_ONCE)
        except zlib.error as exc:
            raise ValueError("not compressed as announced") from exc

    def feed(self, content: bytes) -> bytes:
        """The events that unpacked bytes complete."""
        return _rendered(self._decoder.feed(content))

    def flush(self) -> bytes:
        """The last event of a stream that ends without a blank line."""
        return _rendered(self._decoder.flush())


def _rendered(events: Iterable[SSEEvent]) -> bytes:
    return b"".join(_plain(event) for event in events if event.done or _is_json(event.data))


def _plain(event: SSEEvent) -> bytes:
    name = b"event: %b\n" % event.event if event.event else b""
    # Between the tokens of a JSON text a line end is white space, and inside of them there is none.
    return b"%bdata: %b\n\n" % (name, event.data.replace(b"\n", b" "))


def _is_json(data: bytes) -> bool:
    try:
        orjson.loads(data)
    except ValueError:
        return _is_lenient_json(data)
    return True


def _is_lenient_json(data: bytes) -> bool:
    """JSON to the standard library, which takes what the fast parser refuses."""
    try:
        json.loads(data.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return False
    return True
