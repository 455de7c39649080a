"""The messages of a request as placement may see them, whatever a client has put among them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, overload


class MessageView(Sequence[Mapping[str, Any]]):
    """The messages with a malformed one read as empty; made in no time, whatever their number."""

    __slots__ = ("_messages",)

    def __init__(self, messages: Sequence[Any]) -> None:
        self._messages = messages

    def __len__(self) -> int:
        return len(self._messages)

    @overload
    def __getitem__(self, index: int) -> Mapping[str, Any]: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Mapping[str, Any]]: ...

    def __getitem__(self, index: int | slice) -> Mapping[str, Any] | Sequence[Mapping[str, Any]]:
        found = self._messages[index]
        if isinstance(index, slice):
            return MessageView(found)
        return found if isinstance(found, dict) else {}
