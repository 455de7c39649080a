"""The messages of a request as placement may see them, whatever a client has put among them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gateway.wire.views import MessagesView


class AsMappings(MessagesView):
    """The messages with a malformed one read as empty."""

    __slots__ = ("_messages",)

    def __init__(self, messages: Sequence[Any]) -> None:
        self._messages = messages

    def __len__(self) -> int:
        return len(self._messages)

    def at(self, index: int) -> Mapping[str, Any]:
        """See MessagesView."""
        found = self._messages[index]
        return found if isinstance(found, dict) else {}
