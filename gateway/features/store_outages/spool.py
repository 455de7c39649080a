"""Records that wait in memory for a store that cannot be written, and look-ups in them."""

import asyncio
import time
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator
from heapq import merge
from itertools import chain
from operator import attrgetter

from msgspec import Struct
from msgspec.structs import replace

from gateway.stores.records import FIXED_BYTES, CallRecord, ConversationRecord, PrefixHashRecord


class Waiting(Struct, eq=False):
    """One record that waits for the store, in memory and perhaps in a file."""

    record: CallRecord  # the call that is not stored yet
    # set when writing it to a file was tried, successful or not; None: it is to be in none
    settled: asyncio.Event | None = None
    file: object | None = None  # the SpoolFile that it is in; None when in none
    number: int = 0  # its row in the file
    gone: bool = False  # no longer needed there, because it is stored
    size: int = 0  # bytes it takes in memory, about; 0 until it is kept there
    write: asyncio.Task[int] | None = None  # the commit in progress; None while there is none

    @property
    def safe(self) -> bool:
        """True if the record is on disk, or stored by now."""
        return self.gone or self.file is not None


_DAY_S = 86_400.0


class Pace:
    """The number of calls since a time in the last two days."""

    def __init__(self) -> None:
        self.calls = 0
        self._since = time.monotonic()

    def lasts_s(self, room: float) -> float | None:
        """Seconds until there is no room for another record; None without any call."""
        passed = time.monotonic() - self._since
        if passed > 2 * _DAY_S:  # the first of two days no longer counts
            self.calls //= 2
            self._since += passed / 2
        if self.calls:
            return room * passed / self.calls
        return None


class Spool:
    """Records that wait, in the order in which they came, within `max_records` and `max_bytes`.
    The records of one conversation are written one after another, because each replaces the
    version before it. Look-ups find a waiting record as if it were stored."""

    def __init__(self, *, max_records: int, max_bytes: int):
        self._max_records = max_records
        self._max_bytes = max_bytes
        # Records of one conversation, oldest first.
        self.by_conversation: OrderedDict[str, deque[Waiting]] = OrderedDict()

        self._hashes: dict[bytes, list[tuple[Waiting, PrefixHashRecord]]] = {}
        self._items: dict[tuple[str, str], list[tuple[Waiting, bytes]]] = {}
        self.pace = Pace()
        self.records = 0
        self.bytes = 0

    def __len__(self) -> int:
        return self.records

    def __iter__(self) -> Iterator[Waiting]:
        return chain.from_iterable(self.by_conversation.values())

    @property
    def room(self) -> tuple[int, int]:
        """Records and bytes that still fit."""
        return self._max_records - self.records, self._max_bytes - self.bytes

    @property
    def lasts_s(self) -> float | None:
        """Seconds until the room is used up, with records as large as those that wait; None when
        nothing is known of the pace."""
        records, size = self.room
        mean = self.bytes / self.records if self.records else FIXED_BYTES
        return self.pace.lasts_s(max(0.0, min(records, size / mean)))

    def add(self, record: CallRecord, write: asyncio.Task[int] | None = None) -> Waiting | None:
        """Keep a record; None without room. One whose `write` is in progress is always kept."""
        size = record.memory_bytes
        full = self.records >= self._max_records or self.bytes + size > self._max_bytes
        if full and write is None:
            return None
        waiting = Waiting(record, size=size, write=write)
        self.by_conversation.setdefault(record.conversation.id, deque()).append(waiting)
        self._index(waiting)
        return waiting

    def adopt(self, waiting: Iterable[Waiting]) -> None:
        """Keep the records of a process that ended, whatever the room, before newer ones of their
        conversations."""
        found: dict[str, list[Waiting]] = {}
        for each in waiting:
            each.size = each.record.memory_bytes
            found.setdefault(each.record.conversation.id, []).append(each)
            self._index(each)
        age = attrgetter("record.conversation.updated_at")
        for name, older in found.items():
            known = self.by_conversation.get(name, ())
            self.by_conversation[name] = deque(merge(known, sorted(older, key=age), key=age))

    def _index(self, waiting: Waiting) -> None:
        record = waiting.record
        for head in record.heads:
            self._hashes.setdefault(head.digest, []).append((waiting, head))
        for item in record.items:
            key = (record.conversation.tenant, item.id)
            self._items.setdefault(key, []).append((waiting, item.content))
        self.records = self.records + 1
        self.bytes = self.bytes + waiting.size

    def batch(self, limit: int) -> list[Waiting]:
        """The oldest record of each of up to `limit` conversations."""
        queues = iter(self.by_conversation.values())
        return [queue[0] for queue, _ in zip(queues, range(limit), strict=False)]

    def remove(self, waiting: Waiting) -> None:
        """Forget a record that `batch` gave; the conversation's next one waits for its turn."""
        conversation_id = waiting.record.conversation.id
        queue = self.by_conversation[conversation_id]
        queue.remove(waiting)
        if queue:
            self.by_conversation.move_to_end(conversation_id)
        else:
            del self.by_conversation[conversation_id]
        for head in waiting.record.heads:
            _drop(self._hashes, head.digest, waiting)
        for item in waiting.record.items:
            _drop(self._items, (waiting.record.conversation.tenant, item.id), waiting)
        self.records = self.records - 1
        self.bytes = self.bytes - waiting.size

    def load(self, tenant: str, conversation_id: str) -> ConversationRecord | None:
        """The conversation as its newest record will leave it."""
        queue = self.by_conversation.get(conversation_id)
        if queue is None or queue[-1].record.conversation.tenant != tenant:
            return None
        return _saved(queue[-1].record.conversation)

    def branches(self, tenant: str, external_key: str) -> Iterator[ConversationRecord]:
        """The conversations of a client's own id."""
        for queue in self.by_conversation.values():
            newest = queue[-1].record.conversation
            if (newest.tenant, newest.external_key) == (tenant, external_key):
                yield _saved(newest)

    def prefix_hashes(self, tenant: str, digests: Iterable[bytes]) -> Iterator[PrefixHashRecord]:
        """The prefix hashes among `digests`."""
        for digest in digests:
            for _, head in self._hashes.get(digest, ()):
                if head.tenant == tenant:
                    yield head

    def items(self, tenant: str, ids: Iterable[str]) -> dict[str, bytes]:
        """The output items with these ids."""
        found = {name: self._items.get((tenant, name)) for name in ids}
        return {name: rows[-1][1] for name, rows in found.items() if rows}


def with_version(record: CallRecord, version: int) -> CallRecord:
    """The record, to be saved over `version`."""
    return replace(record, conversation=replace(record.conversation, version=version))


def _saved(record: ConversationRecord) -> ConversationRecord:
    return replace(record, version=record.version + 1)


def _drop(index: dict, key: object, waiting: Waiting) -> None:  # type: ignore[type-arg]
    # Equal choices of one answer have equal hashes: the first of them has removed all.
    rows = [row for row in index.pop(key, ()) if row[0] is not waiting]
    if rows:
        index[key] = rows
