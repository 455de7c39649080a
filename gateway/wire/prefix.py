"""Recognising a request that begins with the bytes of the one before, and reading only the rest.

Agents send their whole history at every call. A byte-wise equal prefix is an equal history, so the
old messages need neither be parsed nor normalised nor hashed nor located again: what a call costs
depends on its new messages, not on the length of its history.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final

from gateway.errors import BadRequest
from gateway.wire.parsing import Loads, parse_object, parse_value
from gateway.wire.scan import Span, array_spans, scannable
from gateway.wire.views import MessagesView

_SPACE: Final = re.compile(rb"[ \t\n\r]*")
_STAND_IN: Final = 7_640_891_576_956_012_809
"""Stands for the known messages where a body is read without them. No message is this number, and a
body that holds it is read whole."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefix:
    """A body, and where its messages stand: what a later one of its conversation begins with.

    `spans` are not empty; `list_key` names the list they are in.
    """

    raw: bytes
    spans: tuple[Span, ...]
    list_key: str

    @property
    def count(self) -> int:
        """How many messages it holds."""
        return len(self.spans)

    @property
    def end(self) -> int:
        """Where its last message ends: the bytes before are what a later body begins with."""
        return self.spans[-1][1]

    @property
    def opening(self) -> int:
        """Where the list of its messages begins."""
        return self.raw.rindex(b"[", 0, self.spans[0][0])

    def begins(self, raw: bytes) -> bool:
        """Whether a body starts with these bytes, the last message being whole in it too."""
        end = self.end
        if not raw.startswith(memoryview(self.raw)[:end]):
            return False
        at = _space_end(raw, end)
        return raw[at : at + 1] in (b",", b"]")

    def extended(self, raw: bytes) -> Prefix:
        """The prefix that a body is which begins with this one; only what is new is scanned."""
        at = _space_end(raw, self.end)
        if raw[at : at + 1] == b"]":
            return Prefix(raw=raw, spans=self.spans, list_key=self.list_key)
        # The text goes on inside the array; an opening bracket makes an array of the new part.
        tail = "[" + scannable(raw[at + 1 :])
        new = ((start + at, end + at) for start, end in array_spans(tail, 0))
        return Prefix(raw=raw, spans=(*self.spans, *new), list_key=self.list_key)

    def read(self, raw: bytes, loads: Loads) -> dict[str, Any] | None:
        """The object in a body that begins with this one, its old messages left unread.

        None when the rest is not JSON, or when the messages are another list: one of the same name
        may come behind, and the last one counts.
        """
        head, rest = raw[: self.opening + 1], raw[_space_end(raw, self.end) :]
        stand_in = b"%d" % _STAND_IN
        if stand_in in rest:
            return None
        try:
            body = parse_object(head + stand_in + rest, loads)
        except BadRequest:
            return None
        listed = body.get(self.list_key)
        if not isinstance(listed, list) or not listed or listed[0] != _STAND_IN:
            return None
        body[self.list_key] = KnownMessages(raw, self.spans, listed[1:], loads)
        return body


class KnownMessages(MessagesView):
    """The messages of a body whose first ones are known: those are read when they are asked for."""

    __slots__ = ("_known", "_loads", "_new", "_raw", "_spans")

    def __init__(self, raw: bytes, spans: tuple[Span, ...], new: list[Any], loads: Loads) -> None:
        self._raw = raw
        self._spans = spans
        self._new = new
        self._loads = loads
        self._known: dict[int, Any] = {}

    def __len__(self) -> int:
        return len(self._spans) + len(self._new)

    def at(self, index: int) -> Any:
        """See MessagesView."""
        behind = index - len(self._spans)
        return self._new[behind] if behind >= 0 else self._read(index)

    def _read(self, at: int) -> Any:
        if at not in self._known:
            start, end = self._spans[at]
            self._known[at] = parse_value(self._raw[start:end], self._loads)
        return self._known[at]


def _space_end(raw: bytes, at: int) -> int:
    found = _SPACE.match(raw, at)
    return found.end() if found is not None else at
