"""The bytes of conversations' latest requests, within a budget.

A request that begins with the bytes of an earlier one continues it, and is read from there on.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Final

from gateway.conversations.body_tree import BodyTree
from gateway.conversations.conversation import Conversation
from gateway.wire.body_prefix import BodyPrefix

# Requests of one agent share their first bytes (model, system prompt): their number is limited.
_OPENING_BYTES: Final = 256

_Opening = tuple[str, bytes]
"""A tenant, and the first bytes of its bodies."""


@dataclass(slots=True)
class _Alike:
    """The known bodies with one opening by conversation, the oldest first; `names` by identity."""

    bodies: OrderedDict[str, BodyPrefix] = field(default_factory=OrderedDict)
    names: dict[int, str] = field(default_factory=dict)
    tree: BodyTree = field(default_factory=BodyTree)

    def add(self, name: str, prefix: BodyPrefix) -> None:
        """Keep the latest body of a conversation."""
        self.remove(name)
        self.bodies[name] = prefix
        self.names[id(prefix)] = name
        self.tree.add(name, prefix)

    def remove(self, name: str) -> None:
        """Remove the body of a conversation, if there is one."""
        prefix = self.bodies.pop(name, None)
        if prefix is not None:
            self.names.pop(id(prefix), None)
            self.tree.remove(name, prefix)


class KnownBodies:
    """The bytes of the latest requests, by their openings, within a budget.

    `max_bodies`: with one opening.
    """

    def __init__(self, max_bodies: int, max_bytes: int) -> None:
        self._max_bodies = max_bodies
        self._max_bytes = max_bytes
        self._bytes = 0
        self._openings: dict[_Opening, _Alike] = {}
        self._kept: dict[str, tuple[_Opening, int]] = {}
        """Of each conversation whose bytes count: the opening, and how many there are."""

    @property
    def has_room(self) -> bool:
        """Whether at most half of the budget is taken."""
        return self._bytes <= self._max_bytes // 2

    def longest(self, tenant: str, raw: bytes, list_key: str) -> BodyPrefix | None:
        """The longest known bytes that a body begins with."""
        alike = self._openings.get((tenant, raw[:_OPENING_BYTES]))
        return alike.tree.longest(raw, list_key) if alike is not None else None

    def conversation_of(self, tenant: str, prefix: BodyPrefix) -> str | None:
        """The id of the conversation whose latest request these bytes are."""
        alike = self._openings.get(_opening(tenant, prefix))
        return alike.names.get(id(prefix)) if alike is not None else None

    def add(self, conversation: Conversation) -> bool:
        """Index a conversation's latest request; True when the budget is exceeded."""
        prefix, name = conversation.history.prefix, conversation.id
        self._forget(name)
        if prefix is None or len(prefix.raw) < _OPENING_BYTES:
            return False
        opening, length = _opening(conversation.tenant, prefix), len(prefix.raw)
        self._kept[name] = opening, length
        self._bytes += length
        alike = self._openings.setdefault(opening, _Alike())
        alike.add(name, prefix)
        if len(alike.bodies) > self._max_bodies:
            alike.remove(next(iter(alike.bodies)))
        return self._bytes > self._max_bytes

    def drop(self, conversation: Conversation) -> None:
        """Forget the bytes of a conversation's last request."""
        conversation.history.prefix = None
        self._forget(conversation.id)

    def _forget(self, name: str) -> None:
        """Forget what was added for a conversation, which may have another request by now."""
        opening, length = self._kept.pop(name, (None, 0))
        self._bytes -= length
        alike = self._openings.get(opening) if opening is not None else None
        if opening is None or alike is None:
            return
        alike.remove(name)
        if not alike.bodies:
            del self._openings[opening]


def _opening(tenant: str, prefix: BodyPrefix) -> _Opening:
    return tenant, prefix.raw[:_OPENING_BYTES]
