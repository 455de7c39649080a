"""The payloads of a stream of named events, in one pass."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from gateway.wire.parsing import Loads
from gateway.wire.sse import SSEDecoder

_DATA = b"\ndata: "


def events_of(stream: bytes, loads: Loads) -> Iterator[dict[str, Any]]:
    """The JSON objects of a complete stream, in order; anything else is left out."""
    plain = _plain(stream, loads)
    for data in _decoded(stream, loads) if plain is None else plain:
        if isinstance(data, dict):
            yield data


def _plain(stream: bytes, loads: Loads) -> list[Any] | None:
    """All payloads in one parse, for a stream of `event:` and `data:` lines; None for any other."""
    if stream.find(b"\r") >= 0 or not stream.endswith(b"\n\n"):
        return None
    payloads = []
    for block in stream[:-2].split(b"\n\n"):
        head, mark, data = block.partition(_DATA)
        # `find`, because `in` raises and drops an error before it searches bytes (CPython 3.11).
        if not mark or data.find(b"\n") >= 0 or head.find(b"\n") >= 0:
            return None
        if not head.startswith(b"event: "):
            return None
        payloads.append(data)
    try:
        parsed = loads(b"[" + b",".join(payloads) + b"]")
    except ValueError:
        return None
    return parsed if len(parsed) == len(payloads) else None


def _decoded(stream: bytes, loads: Loads) -> Iterator[Any]:
    decoder = SSEDecoder()
    for event in [*decoder.feed(stream), *decoder.flush()]:
        if event.data:
            yield _payload(event.data, loads)


def _payload(data: bytes, loads: Loads) -> Any:
    """The value in `data`, None if it is not JSON; bytes that are not UTF-8 are replaced."""
    try:
        return loads(data)
    except ValueError:
        pass
    try:
        return json.loads(data.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return None
