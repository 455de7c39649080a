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
        return HistoryWithGap(self.gone, (*self.reply, *own))


class HistoryWithGap(MessagesView):
    """A history whose first `gone` messages are not available; costs the same for any `gone`."""

    __slots__ = ("_gone", "_rest")

    def __init__(self, gone: int, rest: Sequence[Any]) -> None:
        self._gone, self._rest = gone, rest

    def __len__(self) -> int:
        return self._gone + len(self._rest)

    def at(self, index: int) -> Any:
        """See MessagesView."""
        return self._rest[index - self._gone] if index >= self._gone else _GONE


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
        """See MessagesView."""
        found = self._items[index]
        return self._known.get(reference_of(found) or "", found)


class WithFirst(MessagesView):
    """A list after one first element; the list is not copied."""

    __slots__ = ("_first", "_rest")

    def __init__(self, first: Any, rest: Sequence[Any]) -> None:
        self._first, self._rest = first, rest

    def __len__(self) -> int:
        return 1 + len(self._rest)

    def at(self, index: int) -> Any:
        """See MessagesView."""
        return self._rest[index - 1] if index else self._first
