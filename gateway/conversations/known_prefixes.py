"""Beginnings of bodies that are known, and the transcripts that are kept for them, within
budgets.

KnownBodies keeps the bytes of the latest requests that were read. A request that begins with
them continues their conversation, and only the rest is parsed. TranscriptsInMemory keeps the
conversations whose transcript is in memory. GrowingBodies keeps digests of bodies that were not
read: an agent's list of messages begins with its previous list, and nothing else tells two
agents of one key apart."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

from cachetools import LRUCache
from msgspec import Struct, field

from gateway.conversations.conversation import Conversation
from gateway.tasks import off_loop
from gateway.values import Value
from gateway.wire.body_prefix import BodyPrefix

# Requests of one agent share their first bytes (model, system prompt): their number is limited.
_OPENING_BYTES = 256
# A tenant, and the first bytes of its bodies.
_Opening = tuple[str, bytes]
# Tenant, key, dialect and model: bodies with the same ones are compared with each other.
Owner = tuple[str, ...]
_MOST_OWNERS = 256
# Newest bodies of one owner that are known: as many agents of one key may work side by side.
_MOST_BODIES = 64
# Memory of a short transcript's caches, rounded up. Measured on recorded runs (CPython 3.11): the
# fold of 7 steps keeps 106 kB, of 25 steps 181 kB, of 1,000 steps with a body of 1.8 MB 981 kB.
_LEAST_BYTES = 160 * 1024
_SHARE_OF_BODY = 0.5  # what is added for each byte of the request; from the same measurement


class KnownBodies:
    """The bytes of the latest requests, by their openings, within a budget. `max_bodies`: the
    most bodies kept for one opening."""

    def __init__(self, max_bodies: int, max_bytes: int):
        self._max_bodies = max_bodies
        self._max_bytes = max_bytes
        self._bytes = 0
        self._openings: dict[_Opening, _Alike] = {}
        # Of each conversation whose bytes count: the opening, and how many there are.
        self._kept: dict[str, tuple[_Opening, int]] = {}

    @property
    def has_room(self) -> bool:
        """Whether at most half of the budget is taken."""
        return self._bytes <= self._max_bytes // 2

    def longest(self, tenant: str, raw: bytes, list_key: str) -> BodyPrefix | None:
        """The longest known bytes that a body begins with."""
        alike = self._openings.get((tenant, raw[:_OPENING_BYTES]))
        if alike is not None:
            return alike.tree.longest(raw, list_key)
        return None

    def conversation_of(self, tenant: str, prefix: BodyPrefix) -> str | None:
        """The id of the conversation whose latest request these bytes are."""
        alike = self._openings.get((tenant, prefix.raw[:_OPENING_BYTES]))
        if alike is not None:
            return alike.names.get(id(prefix))
        return None

    def add(self, conversation: Conversation) -> bool:
        """Index a conversation's latest request; True when the budget is exceeded."""
        prefix = conversation.history.prefix
        name = conversation.id
        self._forget(name)
        if prefix is None or len(prefix.raw) < _OPENING_BYTES:
            return False
        opening = (conversation.tenant, prefix.raw[:_OPENING_BYTES])
        length = len(prefix.raw)
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
        alike = None
        if opening is not None:
            alike = self._openings.get(opening)
        if opening is None or alike is None:
            return
        alike.remove(name)
        if not alike.bodies:
            del self._openings[opening]


class BodyTree:
    """A radix tree of known request bodies, by name. A look-up compares one byte wherever bodies
    part, and then all bytes of the bodies it has found. Comparing with each body took 2 ms of a
    call with 900 conversations of one system prompt in memory."""

    def __init__(self) -> None:
        self._root: _Node | None = None

    def longest(self, raw: bytes, list_key: str) -> BodyPrefix | None:
        """The longest of the bodies that `raw` begins with; of equal ones the oldest."""
        found = []
        node = self._root
        length = len(raw)
        while node is not None and node.at < length:
            if node.ending:
                found.append(node)
            node = node.below.get(raw[node.at])
        for node in reversed(found):
            for prefix in node.ending.values():
                if prefix.list_key == list_key:
                    if prefix.begins(raw):
                        return prefix
                    break  # the others are equal
        return None

    def add(self, name: str, prefix: BodyPrefix) -> None:
        """Add a body under a name that has none."""
        raw = prefix.raw
        end = prefix.spans[-1][1]
        if self._root is None:
            self._root = _Node(end, {name: prefix})
            return
        near = self._root  # a body below it agrees with these bytes as far as any
        while near.at < end and (below := near.below.get(raw[near.at])) is not None:
            near = below
        nearest = near.any_body()
        agreed = _agreed(raw, nearest.raw, min(end, nearest.spans[-1][1]))
        parent = None
        node = self._root
        while node.at < agreed:
            parent = node
            node = node.below[raw[node.at]]
        if parts := node.at > agreed:
            node = _Node(agreed, {}, {nearest.raw[agreed]: node})
        if end == agreed:
            node.ending[name] = prefix
        else:
            node.below[raw[agreed]] = _Node(end, {name: prefix})
        if parts:
            self._put(parent, raw, node)

    def remove(self, name: str, prefix: BodyPrefix) -> None:
        """Remove a body that was added."""
        raw = prefix.raw
        end = prefix.spans[-1][1]
        above = None
        parent = None
        node = self._root
        while node is not None and node.at < end:
            above = parent
            parent = node
            node = node.below.get(raw[node.at])
        if node is None or node.ending.pop(name, None) is None or node.ending:
            return
        if node.below:
            self._put(parent, raw, node)
        elif parent is None:
            self._root = None
        else:
            del parent.below[raw[parent.at]]
            self._put(above, raw, parent)

    def _put(self, parent: _Node | None, raw: bytes, node: _Node) -> None:
        """Put a node below its parent; one where nothing ends and nothing parts is left out."""
        if not node.ending and len(node.below) == 1:
            node = next(iter(node.below.values()))
        if parent is None:
            self._root = node
        else:
            parent.below[raw[parent.at]] = node


class _Node(Struct):
    """Bodies that agree in their first `at` bytes."""

    at: int  # bytes
    ending: dict[str, BodyPrefix]  # those that end there, by conversation; all of them are equal
    below: dict[int, _Node] = {}  # the others, by the byte that follows

    def any_body(self) -> BodyPrefix:
        """One of the bodies here or below."""
        node = self
        while not node.ending:
            node = next(iter(node.below.values()))
        return next(iter(node.ending.values()))


def _agreed(one: bytes, other: bytes, limit: int) -> int:
    """Number of bytes at the start that two bodies share, at most `limit`."""
    low = 0
    view = memoryview(other)
    while low < limit:
        middle = (low + limit + 1) // 2
        if one.startswith(view[low:middle], low):
            low = middle
        else:
            limit = middle - 1
    return low


class _Alike(Struct):
    """The known bodies with one opening."""

    bodies: dict[str, BodyPrefix] = {}  # by conversation, the oldest first
    names: dict[int, str] = {}  # conversation by identity of the body
    # finds the longest body that another one begins with
    tree: BodyTree = field(default_factory=BodyTree)

    def add(self, name: str, prefix: BodyPrefix) -> None:
        """Keep the latest body of a conversation that has none here."""
        self.bodies[name] = prefix
        self.names[id(prefix)] = name
        self.tree.add(name, prefix)

    def remove(self, name: str) -> None:
        """Remove the body of a conversation, if there is one."""
        prefix = self.bodies.pop(name, None)
        if prefix is not None:
            self.names.pop(id(prefix), None)
            self.tree.remove(name, prefix)


class TranscriptsInMemory:
    """The conversations whose transcripts' caches are kept, by their latest use; a request of any
    other one is read from its first message."""

    def __init__(self, max_transcripts: int, max_bytes: int):
        self._max_transcripts = max_transcripts
        self._max_bytes = max_bytes
        self._bytes = 0
        self._recent: dict[str, int] = {}  # bytes, by conversation, the latest used last

    def use(self, conversation_id: str, body_bytes: int) -> list[str]:
        """Mark a transcript, with a request of this length, as the latest used; the transcripts
        over the limits, oldest first, which count until they are forgotten."""
        self.forget(conversation_id)
        size = self._recent[conversation_id] = _LEAST_BYTES + int(body_bytes * _SHARE_OF_BODY)
        self._bytes += size
        count = len(self._recent)
        kept = self._bytes
        surplus = []
        for oldest, size in self._recent.items():
            if (count <= self._max_transcripts and kept <= self._max_bytes) or count == 1:
                break
            surplus.append(oldest)
            count = count - 1
            kept = kept - size
        return surplus

    def forget(self, conversation_id: str) -> None:
        """The transcript of a conversation is no longer in memory."""
        self._bytes -= self._recent.pop(conversation_id, 0)


class GrowingBodies:
    """The newest unread bodies of each owner, by the digests of their messages; in memory only."""

    def __init__(self) -> None:
        self._owners: LRUCache[Owner, list[Growth]] = LRUCache(_MOST_OWNERS)

    async def find(self, owner: Owner, messages: memoryview, *, again: bool) -> Growth:
        """The body whose list `messages` is, without the bracket at its end. It continues the
        longest known list that it adds to; an equal one only when the client sends it `again`."""
        sizes = {known.size for known in self._owners.get(owner, ())}
        digests = await off_loop(_digests, messages, sizes)
        own = Growth(size=len(messages), digest=digests[len(messages)])
        fitting = [
            known
            for known in self._owners.get(owner, ())
            if digests.get(known.size) == known.digest
            and (
                again
                if known.size == own.size  # else a further message has to follow
                else bytes(messages[known.size :][:64]).lstrip(b" \t\r\n").startswith(b",")
            )
        ]
        if not fitting:
            return own
        longest = max(fitting, key=lambda known: known.size)
        # Continued once: another body that begins so is another branch, a separate run.
        self._owners[owner].remove(longest)
        return Growth(size=own.size, digest=own.digest, conversation_id=longest.conversation_id)

    def keep(self, owner: Owner, body: Growth) -> None:
        """Remember a body under its conversation."""
        self._owners[owner] = [*self._owners.get(owner, ()), body][-_MOST_BODIES:]


class Growth(Value):
    """The list of messages of a body."""

    size: int  # number of messages
    digest: bytes  # of all of them
    conversation_id: str | None = None  # the one that it continues; None for none that is known


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
    if end > start + 1:
        return memoryview(raw)[start:end]
    return None


def _digests(messages: memoryview, sizes: set[int]) -> dict[int, bytes]:
    """The digest of the first bytes, for each of `sizes` that is there, and of all."""
    found = {}
    hashed = blake2b(digest_size=16)
    at = 0
    for size in sorted({each for each in sizes if each < len(messages)} | {len(messages)}):
        hashed.update(messages[at:size])
        at = size
        found[size] = hashed.digest()
    return found
