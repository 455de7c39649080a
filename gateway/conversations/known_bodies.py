"""The bytes of conversations' latest requests, by how they begin, within a budget.

A request that begins with the bytes of an earlier one continues it, and is read from there on.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from gateway.conversations.conversation import Conversation
from gateway.wire.body_prefix import BodyPrefix

# Requests of one agent share their first bytes (model, system prompt), and conversations differ in
# later ones; so the bodies with one opening are compared one by one.
_OPENING_BYTES: Final = 256
# What is compared first: of equal openings, the last bytes differ most.
_CLOSING_BYTES: Final = 32


class _Body(NamedTuple):
    """The known bytes of one conversation's latest request: where they end, and with what."""

    end: int
    closing: bytes
    prefix: BodyPrefix


class KnownBodies:
    """The bytes of the latest requests, by their openings, within a budget.

    `max_bodies`: with one opening.
    """

    def __init__(self, max_bodies: int, max_bytes: int) -> None:
        self._max_bodies = max_bodies
        self._max_bytes = max_bytes
        self._bytes = 0
        self._openings: dict[tuple[str, bytes], dict[str, _Body]] = {}

    @property
    def has_room(self) -> bool:
        """Whether at most half of the budget is taken."""
        return self._bytes <= self._max_bytes // 2

    def longest(self, tenant: str, raw: bytes, list_key: str) -> BodyPrefix | None:
        """The longest known bytes that a body begins with."""
        best: _Body | None = None
        for body in self._openings.get((tenant, raw[:_OPENING_BYTES]), {}).values():
            end = body.end
            if raw[max(end - _CLOSING_BYTES, 0) : end] != body.closing:
                continue
            longer = best is None or end > best.end
            if longer and body.prefix.list_key == list_key and body.prefix.begins(raw):
                best = body
        return best.prefix if best is not None else None

    def conversation_of(self, tenant: str, prefix: BodyPrefix) -> str | None:
        """The id of the conversation whose latest request these bytes are."""
        bodies = self._openings.get((tenant, prefix.raw[:_OPENING_BYTES]), {})
        return next((name for name, body in bodies.items() if body.prefix is prefix), None)

    def add(self, conversation: Conversation) -> bool:
        """Index a conversation's latest request; True when the budget is exceeded."""
        prefix = conversation.history.prefix
        if prefix is None or len(prefix.raw) < _OPENING_BYTES:
            return False
        self._bytes += len(prefix.raw)
        bodies = self._openings.setdefault(_opening(conversation.tenant, prefix), {})
        end = prefix.end
        closing = prefix.raw[max(end - _CLOSING_BYTES, 0) : end]
        bodies[conversation.id] = _Body(end, closing, prefix)
        if len(bodies) > self._max_bodies:
            del bodies[next(iter(bodies))]
        return self._bytes > self._max_bytes

    def drop(self, conversation: Conversation) -> None:
        """Forget the bytes of a conversation's last request."""
        prefix = conversation.history.prefix
        conversation.history.prefix = None
        if prefix is None or len(prefix.raw) < _OPENING_BYTES:
            return
        self._bytes -= len(prefix.raw)
        opening = _opening(conversation.tenant, prefix)
        bodies = self._openings.get(opening, {})
        bodies.pop(conversation.id, None)
        if not bodies:
            self._openings.pop(opening, None)


def _opening(tenant: str, prefix: BodyPrefix) -> tuple[str, bytes]:
    return tenant, prefix.raw[:_OPENING_BYTES]
