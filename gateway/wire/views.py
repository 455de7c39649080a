"""Lists of messages that are put together when they are read, and not copied."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, overload


class MessagesView(Sequence[Any]):
    """A sequence that gives one message at a time; a subclass has a length and `at`."""

    __slots__ = ()

    @abstractmethod
    def at(self, index: int) -> Any:
        """The message at `index`, which lies in [0, length)."""

    @overload
    def __getitem__(self, index: int) -> Any: ...

    @overload
    def __getitem__(self, index: slice) -> list[Any]: ...

    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return [self.at(i) for i in range(*index.indices(len(self)))]
        at = index + len(self) if index < 0 else index
        if not 0 <= at < len(self):
            raise IndexError(index)
        return self.at(at)
