"""Which conversations keep what was read of their transcripts, within a budget of memory.

A conversation that does not is read again from its first message with each request: the cost of a
call then grows with the length of its history.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

_LEAST_BYTES: Final = 160 * 1024
"""Memory of a short transcript's caches, rounded up. Measured on recorded runs (CPython 3.11): the
fold of 7 steps keeps 106 kB, of 25 steps 181 kB, of 1,000 steps with a body of 1.8 MB 981 kB."""
_SHARE_OF_BODY: Final = 0.5
"""What is added for each byte of the request; from the same measurement."""


class TranscriptsInMemory:
    """The conversations whose transcripts' caches are kept, by their latest use."""

    def __init__(self, max_transcripts: int, max_bytes: int) -> None:
        self._max_transcripts = max_transcripts
        self._max_bytes = max_bytes
        self._bytes = 0
        self._recent: OrderedDict[str, int] = OrderedDict()

    def use(self, conversation_id: str, body_bytes: int) -> list[str]:
        """Mark a transcript as the latest used; the transcripts over the limits, oldest first.

        `body_bytes`: the length of its request. Those returned count until they are forgotten.
        """
        self.forget(conversation_id)
        size = self._recent[conversation_id] = _LEAST_BYTES + int(body_bytes * _SHARE_OF_BODY)
        self._bytes += size
        count, kept, surplus = len(self._recent), self._bytes, []
        for oldest, size in self._recent.items():
            if (count <= self._max_transcripts and kept <= self._max_bytes) or count == 1:
                break
            surplus.append(oldest)
            count, kept = count - 1, kept - size
        return surplus

    def forget(self, conversation_id: str) -> None:
        """The transcript of a conversation is no longer in memory."""
        self._bytes -= self._recent.pop(conversation_id, 0)
