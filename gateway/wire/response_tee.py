"""Watches an answer while it is relayed: keeps its bytes decompressed and notices its end."""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Callable
from typing import Any

from gateway.wire.compression import Unpacker, codings_of, unreadable
from gateway.wire.sse import SSEDecoder, SSEEvent, parse_event

_MARKER = b"[DONE]"
_NAME_BYTES = 64  # longer than any event's name with its field
_USAGE = b'"usage"'
_NO_CHOICES = re.compile(rb'"choices"\s*:\s*\[\s*\]')
_FIELD_BYTES = 16  # longer than the field before the name


_FREE_BYTES = 2**18  # more than almost any answer has
_STEP_BYTES = 2**20


_BOM = b"\xef\xbb\xbf"
_SPACE = b" \t\r\n"


def start_of(content: bytes) -> bytes:
    """The content so far, without a byte order mark and white space before it."""
    return content.removeprefix(_BOM).lstrip(_SPACE)


class Allowance:
    """The bytes of an answer that may be kept: `most` in all, `now` until `holds` is asked again,
    which tells whether so many may be held."""

    def __init__(self, most: int):
        self.most = most
        self.now = min(most, _FREE_BYTES)
        self.holds: Callable[[int], bool] = bool  # any number

    def grows(self, size: int) -> bool:
        """Whether `size` bytes may be kept, and some more."""
        self.now = min(self.most, size + _STEP_BYTES)
        return size <= self.most and self.holds(self.now)


class ResponseWatch:
    """Sees every byte of an answer and changes none. It keeps at most `limit_bytes`
    (decompressed); bytes beyond 256 kB only as far as `allowance` gives room. An answer that is
    larger, or in a compression that cannot be decoded, is `opaque`: it is relayed unwatched."""

    def __init__(self, content_encoding: bytes, limit_bytes: int):
        if content_encoding:
            codings = codings_of(content_encoding)
        else:
            codings = []
        self.opaque = bool(codings and unreadable(codings))
        self._unpacker = Unpacker(codings) if codings and not self.opaque else None
        self.oversized = False
        self.ended = False
        self._chunks: list[bytes] = []
        self.allowance = Allowance(limit_bytes)
        self._size = 0
        self._tail = b""

    def feed(self, chunk: bytes) -> None:
        """Take the next bytes; sets `ended` when a stream's end marker may be in them."""
        if self.opaque:
            return
        if self._unpacker is not None:
            try:
                # One byte over the limit is enough, whatever a compression bomb would unpack to.
                chunk = self._unpacker.decompress(chunk, self.allowance.most - self._size + 1)
            except zlib.error:
                self._give_up()
                return
        if self._keep(chunk):
            self._look_for_end(chunk)

    def take(self, chunk: bytes) -> bool:
        """Take the next bytes of a body that is `plain`, unless the end marker may be in them."""
        if not self.opaque:
            # In one piece: it is called for each read of each stream.
            tail = self._tail
            if chunk.find(_MARKER) >= 0 or (tail and (tail + chunk[:5]).find(_MARKER) >= 0):
                return False
            self._chunks.append(chunk)
            self._size += len(chunk)
            if len(chunk) > 4:
                tail = chunk[-5:]
            else:
                tail = (tail + chunk)[-5:]
            self._tail = tail if tail.find(b"[") >= 0 else b""
            if self._size > self.allowance.now and not self.allowance.grows(self._size):
                self._oversize()
        return True

    def _keep(self, chunk: bytes) -> bool:
        """Whether the chunk was within the limit, and is kept."""
        self._chunks.append(chunk)
        self._size += len(chunk)
        if self._size > self.allowance.now and not self.allowance.grows(self._size):
            self._oversize()
        return not self.opaque

    def _look_for_end(self, chunk: bytes) -> None:
        # `find`, because `in` raises and drops an error before it searches bytes (CPython 3.11).
        if chunk.find(_MARKER) >= 0 or (self._tail + chunk[:5]).find(_MARKER) >= 0:
            self.ended = True
        # Only a `[` near the end can be the start of a marker that the next chunks complete.
        tail = chunk[-5:]
        if self._tail or len(tail) < 5:
            tail = (self._tail + tail)[-5:]
        self._tail = tail if tail.find(b"[") >= 0 else b""

    @property
    def content(self) -> bytes:
        """All bytes so far, decompressed; empty when opaque."""
        return b"".join(self._chunks)

    @property
    def plain(self) -> bool:
        """Whether the bytes are the content itself, so that they can be edited."""
        return self._unpacker is None and not self.opaque

    @property
    def cut(self) -> bool:
        """Whether the bytes so far end in the middle of a compressed body."""
        return self._unpacker is not None and self._unpacker.cut

    def _oversize(self) -> None:
        self.oversized = True
        self._give_up()

    def _give_up(self) -> None:
        self.opaque = True
        self._chunks = []


class NamedEndWatch(ResponseWatch):
    """The same for streams of named events; `ended` is set when the last event is complete."""

    def __init__(self, content_encoding: bytes, limit_bytes: int, end: NamedEnd):
        super().__init__(content_encoding, limit_bytes)
        self._end = end
        self._seen = False

    def take(self, chunk: bytes) -> bool:
        """Take the next bytes, unless the last event may begin in them."""
        if not self.opaque:
            window = self._tail + chunk
            if self._seen or self._end.begins_in(window):
                return False
            if self._keep(chunk):
                self._tail = window[-_NAME_BYTES:]
        return True

    def _look_for_end(self, chunk: bytes) -> None:
        window = self._tail + chunk
        self._seen = self._seen or self._end.begins_in(window)
        if self._seen and self._end.closes(window):
            self.ended = True
        self._tail = window[-_NAME_BYTES:]


def stream_watch(content_encoding: bytes, limit_bytes: int, end: NamedEnd | None) -> ResponseWatch:
    """The watch for a stream whose last event matches `end`; None: OpenAI's end marker."""
    if end is None:
        return ResponseWatch(content_encoding, limit_bytes)
    return NamedEndWatch(content_encoding, limit_bytes, end)


class NamedEnd:
    """Finds where an event with one of some names begins; no text of a model can match. The pattern
    needs a line break or a bare quote, which a JSON string cannot contain. `keys`: the names are
    those of a member that the last object has; the objects may be those of an array."""

    def __init__(self, *names: str, keys: bool = False):
        choice = "|".join(map(re.escape, names))
        pattern = rf'(?:^|\n)event: ?(?:{choice})\r?\n|"type": ?"(?:{choice})"'
        if keys:
            pattern = rf'"(?:{choice})"'
        self._keys = keys
        self._names = [name.encode() for name in names]
        self._pattern = re.compile(pattern.encode())

    def begins_in(self, window: bytes) -> bool:
        """Whether such an event begins among these bytes."""
        # The plain search is fifty times as fast and shows where the pattern can begin.
        found = [at for name in self._names if (at := window.find(name)) >= 0]
        if not found:
            return False
        return self._pattern.search(window, max(0, min(found) - _FIELD_BYTES)) is not None

    def closes(self, window: bytes) -> bool:
        """Whether such an event may be complete with these bytes."""
        if self._keys:
            return window.rstrip().endswith((b"}", b"]"))
        return window.find(b"\n\n") >= 0 or window.find(b"\n\r\n") >= 0


class UsageFilter:
    """Removes the usage chunk from a stream whose client did not ask for it."""

    def __init__(self, loads: Callable[[bytes], Any] = json.loads):
        self._decoder = SSEDecoder()
        self._holds = False
        self._loads = loads

    def feed(self, chunk: bytes) -> bytes:
        """The bytes to send to the client, of `chunk` and of what was held back before it."""
        if not self._holds and chunk.endswith(b"\n\n"):  # whole events
            # A plain search is ten times as fast as the expression.
            if chunk.find(_USAGE) < 0:
                return chunk
            blank_lines = chunk.startswith(b"\n") or chunk.find(b"\n\n\n") >= 0
            if chunk.find(b"\r") < 0 and not blank_lines:
                return self._without_usage(chunk)
        events = self._decoder.feed(chunk)
        self._holds = not self._decoder.idle
        return b"".join(self._kept(e) for e in events)

    def flush(self) -> bytes:
        """The bytes held back at the end of the stream."""
        return b"".join(self._kept(e) for e in self._decoder.flush())

    def _without_usage(self, events: bytes) -> bytes:
        """Whole events, each ended by two line feeds, without usage chunks. Only events without
        choices are parsed: many providers name `usage` in every chunk, and a read may hold a
        hundred chunks."""
        kept = []
        done = end = 0  # up to where bytes were taken, and up to where events were looked at
        for match in _NO_CHOICES.finditer(events):
            if match.start() < end:
                continue
            before = events.rfind(b"\n\n", end, match.start())
            start = end
            if before >= 0:
                start = before + 2
            end = events.find(b"\n\n", match.start()) + 2
            if self._is_usage(parse_event(events[start:end])):
                kept.append(events[done:start])
                done = end
        if done:
            return b"".join([*kept, events[done:]])
        return events

    def _kept(self, event: SSEEvent) -> bytes:
        """The bytes of an event to send; of a usage chunk only the blank lines before it."""
        if not self._is_usage(event):
            return event.raw
        return event.raw[: len(event.raw) - len(event.raw.lstrip(b"\r\n"))]

    def _is_usage(self, event: SSEEvent) -> bool:
        if _USAGE not in event.data or b'"choices"' not in event.data:
            return False
        try:
            chunk = self._loads(event.data)
        except ValueError:
            return False
        return isinstance(chunk, dict) and chunk.get("choices") == [] and bool(chunk.get("usage"))
