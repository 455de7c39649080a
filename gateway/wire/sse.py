"""Server-sent events: an incremental decoder over any split of the bytes, and an encoder.

Source: the WHATWG HTML standard, section 9.2 (event stream interpretation)."""

import json
import re
from typing import Any, NamedTuple

# An error that an upstream writes into a stream without the field that would make it an event.
_BARE_ERROR = re.compile(rb'\s*(\{\s*"(?:error"|type":\s*"error").*)', re.DOTALL)

# Atomic groups, so that one CRLF is never taken for two line ends.
_EVENT_END = re.compile(rb"(?>\r\n|\n|\r)(?>\r\n|\n|\r)")
_LINE_END = re.compile(rb"\r\n|\n|\r")
_BOM = b"\xef\xbb\xbf"

DONE = b"[DONE]"


class SSEEvent(NamedTuple):
    """One event. A named tuple, because one is made for each chunk and a frozen dataclass costs
    three times that."""

    raw: bytes  # its bytes with the blank line: all `raw` joined are the stream
    data: bytes  # its data lines, joined
    event: bytes = b""  # its name; empty for most

    @property
    def done(self) -> bool:
        """Whether this is OpenAI's end marker."""
        return self.data.strip() == DONE


class SSEDecoder:
    """Bytes in any split to events. `flush()` gives the rest after the last blank line."""

    def __init__(self) -> None:
        self._buffer = b""
        self._scanned = 0

    def feed(self, chunk: bytes) -> list[SSEEvent]:
        """The events that `chunk` completes."""
        buffer = chunk
        if self._buffer:
            buffer = self._buffer + chunk
        events = []
        start = 0
        # A terminator may begin up to three bytes before the old end of the buffer.
        for match in _EVENT_END.finditer(buffer, max(0, self._scanned - 3)):
            end = match.end()
            if end == len(buffer) and buffer.endswith(b"\r"):
                break  # the LF may come next; without this, events would depend on the split
            events.append(parse_event(buffer[start:end]))
            start = end
        self._buffer = buffer[start:]
        self._scanned = len(self._buffer)
        return events

    @property
    def idle(self) -> bool:
        """Whether all bytes so far were given as events."""
        return not self._buffer

    def flush(self) -> list[SSEEvent]:
        """The last event when the stream ended without its blank line."""
        rest = self._buffer
        self._buffer = b""
        self._scanned = 0
        if rest:
            return [parse_event(rest)]
        return []


def parse_event(raw: bytes) -> SSEEvent:
    """One block of lines as an event; comments and unknown fields are left out of `data`."""
    # The form of nearly every chunk of a completion.
    one_line = raw.endswith(b"\n\n") and raw.find(b"\n") == len(raw) - 2
    if one_line and raw.startswith(b"data: ") and raw.find(b"\r") < 0:
        return SSEEvent(raw=raw, data=raw[6:-2])
    data = []
    event = b""
    for line in _LINE_END.split(raw.removeprefix(_BOM)):
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            data.append(value)
        elif name == b"event":
            event = value
    if not data and (bare := _BARE_ERROR.match(raw)):
        data.append(bare[1])
    return SSEEvent(raw=raw, data=b"\n".join(data), event=event)


def encode_event(payload: Any, *, event: str | None = None) -> bytes:
    """One `data:` event holding `payload` as compact JSON."""
    data = json.dumps(payload, ensure_ascii=False, separators=(",", ":"))
    head = f"event: {event}\n" if event else ""
    return f"{head}data: {data}\n\n".encode("utf-8", "replace")
