"""Lists of messages that are composed on access instead of copied."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, overload


class MessagesView(Sequence[Any]):
    """A sequence of messages; a subclass defines its length and `at`."""

    __slots__ = ()

    @abstractmethod
    def at(self, index: int) -> Any:
        """The message at `index`, which is in [0, length)."""

    @overload
    def __getitem__(self, index: int) -> Any: ...

    @overload
    def __getitem__(self, index: slice) -> list[Any]: ...

    def __getitem__(self, index: int | slice) -> Any:
        size = len(self)
        if isinstance(index, slice):
            return [self.at(i) for i in range(*index.indices(size))]
        at = index + size if index < 0 else index
        if not 0 <= at < size:
            raise IndexError(index)
        return self.at(at)

    def __iter__(self) -> Iterator[Any]:
        return map(self.at, range(len(self)))


class AsMappings(MessagesView):
    """Messages as placement reads them: a malformed one counts as empty."""

    __slots__ = ("_messages",)

    def __init__(self, messages: Sequence[Any]) -> None:
        self._messages = messages

    def __len__(self) -> int:
        return len(self._messages)

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        for message in self._messages:
            yield message if isinstance(message, dict) else {}

    def at(self, index: int) -> Mapping[str, Any]:
        """See MessagesView."""
        found = self._messages[index]
        return found if isinstance(found, dict) else {}
