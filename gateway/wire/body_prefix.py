"""Recognises a request that begins with the bytes of an earlier one, and parses only the rest.

Agents send their whole history with every call. Equal bytes are an equal history, so the old
messages are not parsed, normalised, hashed or located a second time: the cost of a call depends on
its new messages and not on the length of its history."""

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, overload

from gateway.errors import BadRequest
from gateway.values import FieldDict, Fields, Value
from gateway.wire.parsing import (
    Loads,
    Span,
    after_space,
    array_spans,
    parse_object,
    parse_value,
    scannable,
)


class MessagesView(Sequence[Any]):
    """A sequence of messages; a subclass defines its length and `at`."""

    @abstractmethod
    def at(self, index: int) -> Any:
        """The message at `index`, which is in [0, length)."""

    @overload
    def __getitem__(self, index: int) -> Any: ...

    @overload
    def __getitem__(self, index: slice) -> list[Any]: ...

    def __getitem__(self, index: int | slice) -> Any:
        places = range(len(self))
        if isinstance(index, slice):
            return [self.at(i) for i in places[index]]
        return self.at(places[index])

    def __iter__(self) -> Iterator[Any]:
        return map(self.at, range(len(self)))


class AsMappings(MessagesView):
    """Messages as placement reads them: a malformed one counts as empty."""

    def __init__(self, messages: Sequence[Any]):
        self._messages = messages

    def __len__(self) -> int:
        return len(self._messages)

    def at(self, index: int) -> Fields:
        found = self._messages[index]
        if isinstance(found, dict):
            return found
        return {}


# Replaces the known messages while the rest of a body is parsed. No message is this number, and a
# body that contains it is parsed completely.
_PLACEHOLDER = 7_640_891_576_956_012_809


class BodyPrefix(Value):
    """A body with the offsets of its messages; a later body of the conversation begins like it."""

    raw: bytes  # the whole body
    spans: tuple[Span, ...]  # (start, end) of each message in bytes; not empty
    list_key: str  # key of the list of messages

    @property
    def end(self) -> int:
        """End of the last message: a later body begins with the bytes before it."""
        return self.spans[-1][1]

    @property
    def opening(self) -> int:
        """Start of the list of messages."""
        return self.raw.rindex(b"[", 0, self.spans[0][0])

    def begins(self, raw: bytes) -> bool:
        """Whether a body starts with these bytes and the last message ends there in it, too."""
        if not raw.startswith(memoryview(self.raw)[: self.end]):
            return False
        at = self._behind(raw)
        return raw[at : at + 1] in (b",", b"]")

    def _behind(self, raw: bytes) -> int:
        """The place of what follows the last message in a body that begins with this one."""
        end = self.spans[-1][1]
        if raw[end : end + 1] == b",":  # nearly always: that needs no search
            return end
        return after_space(raw, end)

    def extended(self, raw: bytes) -> "BodyPrefix":
        """The prefix for a body that begins with this one; only the new bytes are scanned."""
        at = self._behind(raw)
        if raw[at : at + 1] == b"]":
            return BodyPrefix(raw=raw, spans=self.spans, list_key=self.list_key)
        # The rest begins inside the array; an opening bracket makes it an array of its own.
        tail = "[" + scannable(raw[at + 1 :])
        new = [(start + at, end + at) for start, end in array_spans(tail, 0)]
        return BodyPrefix(raw=raw, spans=(*self.spans, *new), list_key=self.list_key)

    def read(self, raw: bytes, loads: Loads) -> FieldDict | None:
        """Parses a body that begins with this one, without parsing the old messages again.
        Returns None if the rest is not JSON, or if the body has the key of the list twice: then
        the second list would count."""
        start = raw[: self.opening + 1]
        rest = raw[self._behind(raw) :]
        placeholder = b"%d" % _PLACEHOLDER
        if placeholder in rest:
            return None
        try:
            body = parse_object(start + placeholder + rest, loads)
        except BadRequest:
            return None
        listed = body.get(self.list_key)
        if not isinstance(listed, list) or not listed or listed[0] != _PLACEHOLDER:
            return None
        body[self.list_key] = KnownMessages(raw, self.spans, listed[1:], loads=loads)
        return body


class KnownMessages(MessagesView):
    """The messages of a body whose first ones are known; those are parsed on access."""

    def __init__(self, raw: bytes, spans: tuple[Span, ...], new: list[Any], loads: Loads):
        self._raw = raw
        self._spans = spans
        self.new = new  # behind the known ones
        self._loads = loads
        # The known ones that were asked for, by place: what is taken out is parsed again.
        self.parsed: dict[int, Any] = {}
        self._count = len(spans)
        self._length = len(spans) + len(new)

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> Any: ...

    @overload
    def __getitem__(self, index: slice) -> list[Any]: ...

    def __getitem__(self, index: int | slice) -> Any:
        # Mostly the new messages are asked for: each request does that twenty times.
        if isinstance(index, slice):
            start, stop, step = index.indices(self._length)
            if start >= self._count and step > 0:
                return self.new[start - self._count : max(stop - self._count, 0) : step]
        elif index >= self._count:
            return self.new[index - self._count]
        return super().__getitem__(index)

    def at(self, index: int) -> Any:
        behind = index - self._count
        if behind >= 0:
            return self.new[behind]
        if index not in self.parsed:
            start, end = self._spans[index]
            text = self._raw[start:end]
            try:
                self.parsed[index] = self._loads(text)
            except (ValueError, RecursionError):  # a fast parser may be stricter than JSON
                self.parsed[index] = parse_value(text, self._loads)
        return self.parsed[index]
