"""Event streams as LiteLLM's adapters can read them: an event that is no JSON ends a stream there.

The adapters read line by line and raise at the first line they do not understand, with the rest of
the answer still to come. Here such events are left out, and the others written in one plain form.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

import orjson

from gateway.wire.sse import SSEDecoder, SSEEvent


class ReadableEvents:
    """Bytes of an event stream in any split, to events an adapter can read."""

    __slots__ = ("_decoder",)

    def __init__(self) -> None:
        self._decoder = SSEDecoder()

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
