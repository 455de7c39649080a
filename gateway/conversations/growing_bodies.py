"""Which body that is not read goes on with the messages of which earlier one: by its bytes alone.

An agent sends its growing history with each call, so that the list of its messages begins with the
bytes of the list before it. Nothing else says whose a body without an id is: two agents of one key
send to the same path at the same time.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from hashlib import blake2b

from msgspec import Struct

Owner = tuple[str, ...]
"""Whose bodies are compared with each other: tenant, key, dialect, model."""

_MOST_OWNERS = 256
_MOST_BODIES = 64
"""Newest bodies of one owner that are known: as many agents of one key may work side by side."""
_LOOP_BYTES = 2**16  # a digest of more is made in a thread


class Growth(Struct, frozen=True, kw_only=True):
    """A body's list of messages: its length and digest, and the conversation that it goes on."""

    size: int
    digest: bytes
    conversation_id: str | None = None


class GrowingBodies:
    """The newest unread bodies of each owner, by the digests of their messages; in memory only."""

    def __init__(self) -> None:
        self._owners: OrderedDict[Owner, list[Growth]] = OrderedDict()

    async def find(self, owner: Owner, messages: memoryview, *, again: bool) -> Growth:
        """The body whose list `messages` is, without the bracket at its end.

        It goes on the longest known list that it begins with and adds to; the equal one only
        when the client says that it sends it `again`.
        """
        sizes = {known.size for known in self._owners.get(owner, ())}
        if len(messages) > _LOOP_BYTES:
            digests = await asyncio.to_thread(_digests, messages, sizes)
        else:
            digests = _digests(messages, sizes)
        own = Growth(size=len(messages), digest=digests[len(messages)])
        fitting = [
            known
            for known in self._owners.get(owner, ())
            if digests.get(known.size) == known.digest
            and (again if known.size == own.size else _adds(messages, known.size))
        ]
        if not fitting:
            return own
        longest = max(fitting, key=lambda known: known.size)
        # Gone on with once: another body that begins so is another branch, a run of its own.
        self._owners[owner].remove(longest)
        return Growth(size=own.size, digest=own.digest, conversation_id=longest.conversation_id)

    def keep(self, owner: Owner, body: Growth) -> None:
        """Know a body, whose conversation is named, from now on."""
        known = self._owners.setdefault(owner, [])
        known.append(body)
        del known[:-_MOST_BODIES]
        self._owners.move_to_end(owner)
        if len(self._owners) > _MOST_OWNERS:
            self._owners.popitem(last=False)


def messages_of(raw: bytes, spans: Sequence[tuple[int, int]]) -> memoryview | None:
    """The list of messages without the bracket at its end; None when it is no single list."""
    if len(spans) != 1:
        return None
    start, end = spans[0]
    if raw[start : start + 1] != b"[" or raw[end - 1 : end] != b"]":
        return None
    end -= 1
    while end > start + 1 and raw[end - 1] in b" \t\r\n":
        end -= 1
    return memoryview(raw)[start:end] if end > start + 1 else None


def _digests(messages: memoryview, sizes: set[int]) -> dict[int, bytes]:
    """The digest of the first bytes, for each of `sizes` that is there, and of all."""
    found: dict[int, bytes] = {}
    hashed, at = blake2b(digest_size=16), 0
    for size in sorted({each for each in sizes if each < len(messages)} | {len(messages)}):
        hashed.update(messages[at:size])
        at = size
        found[size] = hashed.digest()
    return found


def _adds(messages: memoryview, size: int) -> bool:
    """Whether a further message begins after `size` bytes."""
    return bytes(messages[size : size + 64]).lstrip(b" \t\r\n").startswith(b",")
