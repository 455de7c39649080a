"""The bytes of conversations' latest requests, by how they begin, within a budget.

A request that begins with the bytes of an earlier one continues it, and is read from there on.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from itertools import islice

from gateway.conversations.conversation import Conversation

# Requests of one agent share their first bytes (model, system prompt), and conversations differ in
# later ones; so the bodies with one opening are compared in full, newest first.
_OPENING_BYTES = 256


class KnownBodies:
    """The bytes of the latest requests, by their openings, within a budget."""

    def __init__(self, max_transcripts: int, max_bytes: int) -> None:
        self._max_transcripts = max_transcripts
        self._max_bytes = max_bytes
        self._bytes = 0
        self._recent: OrderedDict[str, None] = OrderedDict()
        self._openings: dict[tuple[str, bytes], list[str]] = {}

    @property
    def has_room(self) -> bool:
        """Whether at most half of the budget is taken."""
        return self._bytes <= self._max_bytes // 2

    def use(self, conversation_id: str) -> list[str]:
        """Mark a transcript as the most recently used; the transcripts over the limit, oldest
        first."""
        self._recent[conversation_id] = None
        self._recent.move_to_end(conversation_id)
        surplus = max(len(self._recent) - self._max_transcripts, 0)
        return list(islice(self._recent, surplus))

    def forget(self, conversation_id: str) -> None:
        """The transcript of a conversation is no longer in memory."""
        self._recent.pop(conversation_id, None)

    def with_opening(self, tenant: str, raw: bytes) -> Iterable[str]:
        """Conversations whose latest request begins as `raw` does, newest first."""
        return self._openings.get((tenant, raw[:_OPENING_BYTES]), ())

    def add(self, conversation: Conversation) -> bool:
        """Index a conversation's latest request; True when the budget is exceeded."""
        prefix = conversation.history.prefix
        if prefix is None or len(prefix.raw) < _OPENING_BYTES:
            return False
        self._bytes += len(prefix.raw)
        opening = (conversation.tenant, prefix.raw[:_OPENING_BYTES])
        bucket = self._openings.setdefault(opening, [])
        bucket.insert(0, conversation.id)
        del bucket[self._max_transcripts :]
        return self._bytes > self._max_bytes

    def drop(self, conversation: Conversation) -> None:
        """Forget the bytes of a conversation's last request."""
        prefix = conversation.history.prefix
        conversation.history.prefix = None
        if prefix is None or len(prefix.raw) < _OPENING_BYTES:
            return
        self._bytes -= len(prefix.raw)
        opening = (conversation.tenant, prefix.raw[:_OPENING_BYTES])
        bucket = self._openings.get(opening, [])
        if conversation.id in bucket:
            bucket.remove(conversation.id)
        if not bucket:
            self._openings.pop(opening, None)
