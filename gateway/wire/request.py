"""A chat request over the client's own bytes: read as parsed JSON, changed by splicing the bytes.

Everything that is not edited stays byte for byte as the client wrote it: unknown fields, key order,
number forms (`1.0`, 2^70), escapes and white space. Guidance is placed by splices, too."""

import json
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from gateway.values import FieldDict, Texts, Value
from gateway.wire.body_prefix import BodyPrefix, KnownMessages
from gateway.wire.parsing import (
    Span,
    array_spans,
    object_spans,
    parse_object,
    scannable,
    skip_space,
)

# Bodies from this size on are read in a thread: finding the messages of 58 MB takes 0.4 s of CPU,
# in pieces between which other requests are served. Smaller ones take less than 20 ms: 600 kB of
# one tool call's arguments, with 50,000 keys the dearest of contents, took 28.
BIG_BYTES = 2**19


class Splice(Value):
    """Replacement of a part of the body."""

    start: int  # offset of the first byte that goes
    end: int  # offset behind the last byte that goes
    text: str  # put in their place, as JSON text


class ChatRequest:
    """One chat-completions body. `raw` is never changed; edits give new bytes. `known` is the
    prefix that `raw` begins with, if only the rest of the body was parsed. `skimmed` has the places
    of the members of a body whose large ones were not read (`gateway.wire.parsing`)."""

    large = False  # whether it has so much that one at a time is steered
    # lets others go on between two parts of a long history
    pause: Callable[[], Awaitable[None]] | None = None

    def __init__(
        self,
        raw: bytes,
        body: FieldDict,
        list_key: str = "messages",
        known: BodyPrefix | None = None,
        skimmed: dict[str, list[Span]] | None = None,
    ):
        self.raw = raw
        self.body = body
        self.model = str(body.get("model", ""))
        # Whether the client asked for a stream.
        self.stream = body.get("stream") is True

        listed = body.get(list_key)
        # The messages as parsed; elements may be malformed.
        self.messages: Sequence[Any] = listed if isinstance(listed, (list, KnownMessages)) else []

        self.list_key = list_key
        self.known = known
        self.unread = skimmed is not None
        self._spans: dict[str, list[Span]] | None = skimmed
        self._elements: dict[str, list[Span]] = {}
        self._prefix: BodyPrefix | None = None

    @property
    def whole(self) -> FieldDict:
        """The body with all its messages in one list. Raises: BadRequest, where it was not read."""
        if self.unread:
            return parse_object(self.raw, json.loads)
        if self.known is None:
            return self.body
        return {**self.body, self.list_key: list(self.messages)}

    @property
    def wants_usage(self) -> bool:
        """Whether the client asked for the usage chunk of a stream."""
        options = self.body.get("stream_options")
        return isinstance(options, dict) and options.get("include_usage") is True

    @property
    def prefix(self) -> BodyPrefix | None:
        """The prefix that a later request may begin with; None without messages."""
        if self._prefix is None and self.messages:
            if self.known:
                self._prefix = self.known.extended(self.raw)
            else:
                self._prefix = self._scanned()
        return self._prefix

    @property
    def message_spans(self) -> Sequence[Span]:
        """(start, end) of each message in `raw`."""
        if self.prefix is not None:
            return self.prefix.spans
        return ()

    def spans(self, key: str) -> list[Span]:
        """(start, end) in `raw` of each value of top-level `key`, which may be repeated."""
        if self._spans is None:
            self._spans = {}
            raw, cut, missing = self._outline()
            # A body that is read for the first time is gone through once for both.
            if self.known:
                self._elements = {}
            else:
                self._elements = {self.list_key: []}
            for name, start, end in object_spans(scannable(raw), self._elements):
                start, end = (at + missing if at > cut else at for at in (start, end))
                self._spans.setdefault(name, []).append((start, end))
        return self._spans.get(key, [])

    def _scanned(self) -> BodyPrefix:
        self.spans(self.list_key)
        spans = tuple(self._elements[self.list_key])
        return BodyPrefix(raw=self.raw, spans=spans, list_key=self.list_key)

    def _outline(self) -> tuple[bytes, int, int]:
        """(body without the messages, offset where they were cut out, number of missing bytes)."""
        if self.known is None or self.prefix is None:
            return self.raw, len(self.raw), 0
        cut = self.known.opening
        end = self.prefix.end
        return self.raw[: cut + 1] + self.raw[end:], cut, end - cut - 1

    def set_value(self, key: str, value: Any) -> list[Splice]:
        """The splices that give top-level `key` the value, adding the key when it is absent."""
        literal = json.dumps(value, ensure_ascii=False)
        spans = self.spans(key)
        if spans:
            return [Splice(start=s, end=e, text=literal) for s, e in spans]
        end = self.raw.rindex(b"}")
        comma = ", " if self._spans else ""  # the body may have members of the path
        return [Splice(start=end, end=end, text=f"{comma}{json.dumps(key)}: {literal}")]

    def with_model(self, model: str) -> list[Splice]:
        """The splices that ask for another model."""
        if model == self.model:
            return []
        return self.set_value("model", model)

    def with_usage(self) -> list[Splice]:
        """The splices that ask for a stream's usage chunk, keeping the other stream options."""
        if not self.body.get("stream_options") or not isinstance(
            self.body["stream_options"], Mapping
        ):
            return self.set_value("stream_options", {"include_usage": True})
        start, end = self.spans("stream_options")[-1]
        members = object_spans(scannable(self.raw[start:end]))
        found = [(start + s, start + e) for key, s, e in members if key == "include_usage"]
        if found:
            return [Splice(start=s, end=e, text="true") for s, e in found]
        return [Splice(start=start + 1, end=start + 1, text='"include_usage": true, ')]

    def render(self, splices: Iterable[Splice]) -> bytes:
        """The body with the splices applied; without any, the client's own bytes."""
        ordered = sorted(splices, key=lambda s: (s.start, s.end))
        if not ordered:
            return self.raw
        parts = list[bytes | memoryview]()
        at = 0
        raw = memoryview(self.raw)  # whose parts are copied once, when they are joined
        for splice in ordered:
            parts += [raw[at : splice.start], splice.text.encode("utf-8", "surrogateescape")]
            at = splice.end
        parts.append(raw[at:])
        return b"".join(parts)


def insert_message(request: ChatRequest, position: int, role: str, text: str) -> Splice:
    """A message with `text` before the client's message `position`; their count = at the end. A
    list without messages takes only one such splice."""
    spans = request.message_spans
    literal = _message(role, text)
    if position < len(spans):
        at = spans[position][0]
        return Splice(start=at, end=at, text=f"{literal}, ")
    if spans:
        at = spans[-1][1]
        return Splice(start=at, end=at, text=f", {literal}")
    at = request.spans(request.list_key)[-1][0] + 1
    return Splice(start=at, end=at, text=literal)


@lru_cache(maxsize=64)
def _message(role: str, text: str) -> str:
    """Cached, because every run begins with the same guidance."""
    return json.dumps({"role": role, "content": text})


def append_to_message(
    request: ChatRequest,
    index: int,
    texts: Sequence[str],
    breakpoint: Texts | None = None,
    *,
    part_type: str = "text",
    key: str = "content",
    as_parts: bool = False,
) -> list[Splice]:
    """`texts` as separate blocks at the end of the content of message `index`. To a string each
    text is added after a blank line, to a list of parts as a part; absent, null or empty content is
    replaced by the texts. With `breakpoint` or `as_parts` the content becomes a list of parts, and
    the last of the client's own gets the `breakpoint` as `cache_control`. `part_type`: the type of
    a text part in the dialect; `key`: the member that is the content."""
    start, end = request.message_spans[index]
    message = request.raw[start:end].decode("latin-1")  # as `scannable` has it
    found = [(s, e) for name, s, e in object_spans(message) if name == key]
    if not found:
        comma = ", "
        if message[skip_space(message, 1)] == "}":
            comma = ""
        joined = json.dumps("\n\n".join(texts))
        return [Splice(start=start + 1, end=start + 1, text=f"{json.dumps(key)}: {joined}{comma}")]
    s, e = (start + at for at in found[-1])
    content = message[found[-1][0] : found[-1][1]]
    if content[0] == "[" and content[skip_space(content, 1)] != "]":
        return _append_parts(
            content, s, [json.dumps(part(t, part_type)) for t in texts], breakpoint=breakpoint
        )
    if content[0] != '"' or content == '""':
        return [Splice(start=s, end=e, text=json.dumps("\n\n".join(texts)))]
    if breakpoint is None and not as_parts:
        added = json.dumps("".join(f"\n\n{t}" for t in texts))[1:-1]
        return [Splice(start=e - 1, end=e - 1, text=added)]
    marker = ""
    if breakpoint:
        marker = f', "cache_control": {json.dumps(dict(breakpoint))}'
    head = Splice(start=s, end=s, text='[{"type": "text", "text": ')
    parts = "".join(f", {json.dumps(part(t))}" for t in texts)
    return [head, Splice(start=e, end=e, text=f"{marker}}}{parts}]")]


def _append_parts(
    content: str, start: int, added: Sequence[str], breakpoint: Texts | None
) -> list[Splice]:
    """`added` after the last part of `content`, which begins at `start` in the body."""
    splices = []
    first, last = array_spans(content, 0)[-1]
    last_end = start + last
    if breakpoint is not None and content[first] == "{":
        at = last_end - 1
        empty = content[skip_space(content, first + 1)] == "}"
        marker = f'"cache_control": {json.dumps(dict(breakpoint))}'
        splices.append(Splice(start=at, end=at, text=marker if empty else f", {marker}"))
    behind = "".join(f", {each}" for each in added)
    splices.append(Splice(start=last_end, end=last_end, text=behind))
    return splices


def part(text: str, kind: str = "text") -> Texts:
    """A part of a content with a text; without a type if `kind` is empty."""
    if kind:
        return {"type": kind, "text": text}
    return {"text": text}
