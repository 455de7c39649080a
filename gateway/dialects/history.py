"""A history that the client leaves to the server: all that is needed to go on from there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gateway.wire.heads import ChainState
from gateway.wire.messages import REFERENCE
from gateway.wire.views import MessagesView

_GONE: dict[str, Any] = {"role": "developer"}
"""In the place of a message that is not at hand: it says nothing and leaves no trace."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Earlier:
    """What came before a request: `chain` after the request answered last, and that `reply`."""

    chain: ChainState
    reply: tuple[Any, ...] = ()

    @property
    def gone(self) -> int:
        """How many messages before the reply are not at hand."""
        return self.chain.count

    def followed_by(self, own: Sequence[Any]) -> Sequence[Any]:
        """The whole history of a request that brings `own`."""
        return Continued(self.gone, (*self.reply, *own))


class Continued(MessagesView):
    """A history whose first `gone` messages are not at hand; made in no time, whatever `gone`."""

    __slots__ = ("_gone", "_rest")

    def __init__(self, gone: int, rest: Sequence[Any]) -> None:
        self._gone = gone
        self._rest = rest

    def __len__(self) -> int:
        return self._gone + len(self._rest)

    def at(self, index: int) -> Any:
        """See MessagesView."""
        return self._rest[index - self._gone] if index >= self._gone else _GONE


def reference_of(item: Any) -> str | None:
    """The id in an item that is nothing else; the type may be left out."""
    if not isinstance(item, Mapping):
        return None
    if item.get("type") != REFERENCE and item.keys() != {"id"}:
        return None
    name = item.get("id")
    return name if isinstance(name, str) else None


class Resolved(MessagesView):
    """A history with items in the places of their references; read as it is asked for."""

    __slots__ = ("_items", "_known")

    def __init__(self, items: Sequence[Any], known: Mapping[str, Any]) -> None:
        self._items = items
        self._known = known

    def __len__(self) -> int:
        return len(self._items)

    def at(self, index: int) -> Any:
        """See MessagesView."""
        found = self._items[index]
        return self._known.get(reference_of(found) or "", found)


class Fronted(MessagesView):
    """A list with one element in front of it; the list is not copied."""

    __slots__ = ("_first", "_rest")

    def __init__(self, first: Any, rest: Sequence[Any]) -> None:
        self._first = first
        self._rest = rest

    def __len__(self) -> int:
        return 1 + len(self._rest)

    def at(self, index: int) -> Any:
        """See MessagesView."""
        return self._rest[index - 1] if index else self._first
