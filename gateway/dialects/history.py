"""Histories that the upstream stores: what is known of them, and views that add them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from gateway.wire.body_prefix import MessagesView
from gateway.wire.coerce import as_text
from gateway.wire.messages import REFERENCE
from gateway.wire.prefix_hash import ChainState

_GONE: dict[str, Any] = {"role": "developer"}
"""Replaces a message that is not available: a developer message without text or digest."""


class EarlierHistory(Struct, frozen=True, kw_only=True):
    """The history before a request: `chain` after the request answered last, and that `reply`."""

    chain: ChainState
    reply: tuple[Any, ...] = ()

    @property
    def gone(self) -> int:
        """Number of messages before the reply that are not available."""
        return self.chain.count

    def followed_by(self, own: Sequence[Any]) -> Sequence[Any]:
        """The whole history of a request that contains `own`."""
        return WithFirst(_GONE, (*self.reply, *own), self.gone)


def reference_of(item: Any) -> str | None:
    """The id in an item that is only a reference; its type may be left out."""
    if isinstance(item, dict) and (item.get("type") == REFERENCE or item.keys() == {"id"}):
        return as_text(item.get("id"), None)
    return None


class ResolvedReferences(MessagesView):
    """A history with references replaced by the known items, on access."""

    __slots__ = ("_items", "_known")

    def __init__(self, items: Sequence[Any], known: Mapping[str, Any]) -> None:
        self._items, self._known = items, known

    def __len__(self) -> int:
        return len(self._items)

    def at(self, index: int) -> Any:
        found = self._items[index]
        return self._known.get(reference_of(found) or "", found)


class WithFirst(MessagesView):
    """A list after one first element, `times` over; costs the same for any list and number."""

    __slots__ = ("_first", "_rest", "_times")

    def __init__(self, first: Any, rest: Sequence[Any], times: int = 1) -> None:
        self._first, self._rest, self._times = first, rest, times

    def __len__(self) -> int:
        return self._times + len(self._rest)

    def at(self, index: int) -> Any:
        return self._rest[index - self._times] if index >= self._times else self._first
