"""Finding conversations: in memory first, in the store when memory does not know."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

from gateway.conversations.answered import KEPT_IN_MEMORY, Answered, response_head
from gateway.conversations.memo import Conversation, restored
from gateway.observability.logging import get_logger
from gateway.steering.conversation import Branch, HeadRef, Incoming, calls_head
from gateway.stores.base import StateStore
from gateway.stores.records import ConversationRecord, HeadRecord
from gateway.wire.prefix import Prefix

# Requests of one agent share their first bytes (model, system prompt); what tells conversations
# apart comes later. A bucket is tried by comparing bytes, newest first.
_OPENING_BYTES = 256
_MAX_REFS = 64  # conversations remembered for one head; common openings collect many
_MAX_HEADS = 128  # the newest of one conversation: 64 turns; the store knows where older ones fork
_MAX_ITEMS = 4096  # items of answers held in memory; the store has all
_REPLY = "reply:"

_Calls = tuple[str, tuple[str, ...]]
"""A tenant, and the ids of a reply's calls."""

_log = get_logger("gateway.conversations")


class ConversationIndex:
    """The conversations in memory, least recently used ones dropped, and the way to the store."""

    def __init__(
        self,
        store: StateStore,
        *,
        max_conversations: int,
        max_transcripts: int,
        max_prefix_bytes: int,
    ) -> None:
        self._store = store
        self._max = max_conversations
        self._max_transcripts = max_transcripts
        self._transcripts: OrderedDict[str, None] = OrderedDict()
        self._max_prefix_bytes = max_prefix_bytes
        self._prefix_bytes = 0
        self._by_id: OrderedDict[str, Conversation] = OrderedDict()
        self._by_key: dict[tuple[str, str], list[str]] = {}
        self._heads: dict[bytes, list[HeadRef]] = {}
        self._openings: dict[tuple[str, bytes], list[str]] = {}
        self._answers: dict[bytes, str] = {}
        self._owing: dict[_Calls, list[str]] = {}
        self._owed: dict[str, _Calls] = {}
        self._items: OrderedDict[tuple[str, str], Any] = OrderedDict()

    def __len__(self) -> int:
        return len(self._by_id)

    @property
    def openings(self) -> int:
        """How many beginnings of requests are told apart."""
        return len(self._openings)

    def get(self, conversation_id: str) -> Conversation | None:
        """A conversation in memory, which becomes the most recently used."""
        found = self._by_id.get(conversation_id)
        if found is not None:
            self._by_id.move_to_end(conversation_id)
        return found

    def add(self, conversation: Conversation) -> None:
        """Hold a conversation, in place of one of the same id; the next `used` makes room."""
        old = self._by_id.pop(conversation.id, None)
        if old is not None:
            self._forget(old)
        self._by_id[conversation.id] = conversation
        if conversation.external_key is not None:
            key = (conversation.tenant, conversation.external_key)
            self._by_key.setdefault(key, []).append(conversation.id)
        for answer in conversation.answered.values():
            self._index_answer(conversation, answer)

    def _make_room(self) -> None:
        """Drop the least recently used ones, but none with a call on its way: until that is
        recorded the store does not know where its run stands."""
        surplus = max(len(self._by_id) - self._max, 0)
        idle = (found for found in self._by_id.values() if not found.busy)
        for dropped in list(islice(idle, surplus)):
            del self._by_id[dropped.id]
            self._forget(dropped)

    def used(self, conversation: Conversation) -> None:
        """A request of this conversation was read: keep what its transcript told, drop the oldest.

        What a transcript told is most of a conversation's memory, and a request can always tell it
        again. Of a conversation with a call on its way only the bytes go: where its run stands is
        yet to be recorded.
        """
        self._transcripts[conversation.id] = None
        self._transcripts.move_to_end(conversation.id)
        surplus = max(len(self._transcripts) - self._max_transcripts, 0)
        for oldest in list(islice(self._transcripts, surplus)):
            found = self._by_id.get(oldest)
            if found is not None:
                self.drop_prefix(found)
                if found.busy:
                    continue
                found.forget_transcript()
            del self._transcripts[oldest]
        self._make_room()

    def add_head(self, conversation: Conversation, digest: bytes, served: bytes) -> None:
        """A later request whose history has the head `digest` may belong to `conversation`."""
        refs = self._heads.setdefault(digest, [])
        if not any(r.conversation_id == conversation.id and r.served == served for r in refs):
            refs.insert(0, HeadRef(conversation_id=conversation.id, served=served))
            conversation.heads.append(digest)
            del refs[_MAX_REFS:]
            if len(conversation.heads) > _MAX_HEADS:
                self._drop_head(conversation, conversation.heads.pop(0))

    def _drop_head(self, conversation: Conversation, digest: bytes) -> None:
        refs = self._heads.get(digest, [])
        refs[:] = [ref for ref in refs if ref.conversation_id != conversation.id]
        if not refs:
            self._heads.pop(digest, None)

    def add_answer(self, conversation: Conversation, answer: Answered) -> None:
        """A later request may go on from this answer by its id."""
        conversation.answered.pop(answer.id, None)
        conversation.answered[answer.id] = answer
        self._index_answer(conversation, answer)
        for name in list(conversation.answered)[:-KEPT_IN_MEMORY]:
            del conversation.answered[name]
            self._answers.pop(response_head(conversation.tenant, name), None)

    def _index_answer(self, conversation: Conversation, answer: Answered) -> None:
        self._answers[response_head(conversation.tenant, answer.id)] = conversation.id
        self.add_head(conversation, answer.after.digest, answer.chain.digest)

    async def answer(self, tenant: str, name: str) -> tuple[str, Answered | None]:
        """The answer with this id, from memory or the store, and its conversation's id."""
        head = response_head(tenant, name)
        owner = self._answers.get(head)
        if owner is None:
            for row in await self._store.find_heads(tenant, [head]):
                record = await self._store.load(tenant, row.conversation_id)
                if record is not None:
                    self._restore(record)
            owner = self._answers.get(head)
        found = self._by_id.get(owner) if owner is not None else None
        return (found.id, found.answered.get(name)) if found is not None else ("", None)

    async def newest_answer(self, tenant: str, external_key: str) -> tuple[str, Answered | None]:
        """The latest answer of the conversation with this id from outside, and its own id."""
        if not self._by_key.get((tenant, external_key)):
            await self.load_key(tenant, external_key)
        for name in reversed(self._by_key.get((tenant, external_key), ())):
            found = self._by_id.get(name)
            if found is not None and found.answered:
                return found.id, next(reversed(found.answered.values()))
        return "", None

    async def items(self, tenant: str, ids: Iterable[str]) -> dict[str, Any]:
        """The items with these ids, from memory or the store, as far as they are known."""
        wanted = list(dict.fromkeys(ids))
        found = {
            name: self._items[tenant, name] for name in wanted if (tenant, name) in self._items
        }
        if missing := [name for name in wanted if name not in found]:
            for name, content in (await self._store.find_items(tenant, missing)).items():
                found[name] = json.loads(content)
            self.keep_items(tenant, found)
        return found

    def keep_items(self, tenant: str, items: Mapping[str, Any]) -> None:
        """Hold items of answers, the newest of all."""
        for name, item in items.items():
            self._items.pop((tenant, name), None)
            self._items[tenant, name] = item
        while len(self._items) > _MAX_ITEMS:
            self._items.popitem(last=False)

    def known_prefix(self, tenant: str, raw: bytes, list_key: str) -> Prefix | None:
        """The longest beginning of a body among the latest requests of all conversations."""
        best: Prefix | None = None
        for held in self._held(tenant, raw):
            prefix = held.prefix
            if prefix is None or (best is not None and best.end >= prefix.end):
                continue
            if prefix.list_key == list_key and prefix.begins(raw):
                best = prefix
        return best

    def holder(self, tenant: str, prefix: Prefix | None) -> Conversation | None:
        """The conversation whose latest request the prefix is, if it still is."""
        if prefix is None:
            return None
        held = self._held(tenant, prefix.raw)
        return next((found for found in held if found.prefix is prefix), None)

    def _held(self, tenant: str, raw: bytes) -> Iterator[Conversation]:
        for conversation_id in self._openings.get((tenant, raw[:_OPENING_BYTES]), ()):
            found = self._by_id.get(conversation_id)
            if found is not None:
                yield found

    def keep_prefix(self, conversation: Conversation) -> None:
        """Make the bytes of the conversation's latest request known, while there is room."""
        prefix = conversation.prefix
        if prefix is None or len(prefix.raw) < _OPENING_BYTES:
            return
        self._prefix_bytes += len(prefix.raw)
        opening = (conversation.tenant, prefix.raw[:_OPENING_BYTES])
        bucket = self._openings.setdefault(opening, [])
        bucket.insert(0, conversation.id)
        del bucket[self._max_transcripts :]
        self._trim_prefixes()

    def drop_prefix(self, conversation: Conversation) -> None:
        """Forget the bytes of a conversation's last request."""
        if conversation.prefix is not None:
            if len(conversation.prefix.raw) >= _OPENING_BYTES:
                self._prefix_bytes -= len(conversation.prefix.raw)
                self._close(conversation, conversation.prefix)
            conversation.prefix = None

    def _close(self, conversation: Conversation, prefix: Prefix) -> None:
        opening = (conversation.tenant, prefix.raw[:_OPENING_BYTES])
        bucket = self._openings.get(opening, [])
        if conversation.id in bucket:
            bucket.remove(conversation.id)
        if not bucket:
            self._openings.pop(opening, None)

    def known_heads(
        self, candidates: Iterable[tuple[int, bytes]]
    ) -> tuple[dict[bytes, list[HeadRef]], dict[str, Branch]]:
        """The stored heads among the candidates, and the branches they name, from memory."""
        heads: dict[bytes, list[HeadRef]] = {}
        branches: dict[str, Branch] = {}
        for _, digest in candidates:
            refs = self._heads.get(digest)
            if refs:
                heads[digest] = refs
                for ref in refs:
                    found = self._by_id.get(ref.conversation_id)
                    if found is not None:
                        branches[ref.conversation_id] = found.branch
        return heads, branches

    def branches_of(self, tenant: str, external_key: str) -> dict[str, Branch]:
        """The branches under an id from outside, most recently used first, from memory."""
        ids = self._by_key.get((tenant, external_key), ())
        found = [self._by_id[i] for i in ids if i in self._by_id]
        return {c.id: c.branch for c in reversed(found)}

    def owes(self, conversation: Conversation) -> None:
        """The latest reply of the conversation asked for calls: find it by them from now on."""
        self._settle(conversation.id)
        if conversation.branch.reply_calls:
            calls = (conversation.tenant, conversation.branch.reply_calls)
            self._owing.setdefault(calls, []).append(conversation.id)
            self._owed[conversation.id] = calls

    def owing(self, tenant: str, request: Incoming) -> dict[str, Branch]:
        """The branches whose latest reply made the calls that the request answers."""
        ids = self._owing.get((tenant, request.calls), ())
        return {i: self._by_id[i].branch for i in ids if i in self._by_id}

    def _settle(self, conversation_id: str) -> None:
        calls = self._owed.pop(conversation_id, None)
        if calls is not None:
            self._owing[calls].remove(conversation_id)
            if not self._owing[calls]:
                del self._owing[calls]

    async def load_heads(self, tenant: str, incoming: Incoming) -> None:
        """Bring the conversations with a head in this history in from the store.

        One that memory holds already is brought in again when the store knows more heads of it:
        then another gateway has served it since.
        """
        digests = [digest for _, digest in reversed(incoming.heads.candidates())]
        rows = await self._store.find_heads(tenant, digests) if digests else []
        news = [(row, _ref(row)) for row in rows]
        wanted = {row.conversation_id for row, ref in news if not self._knows(row.digest, ref)}
        for conversation_id in wanted:
            record = await self._store.load(tenant, conversation_id)
            if record is not None:
                self._restore(record)
        for row, ref in reversed(news):  # the newest last: of one conversation the oldest go first
            found = self._by_id.get(row.conversation_id)
            if found is not None:
                self.add_head(found, row.digest, ref.served)

    async def load_owing(self, tenant: str, calls: Iterable[str]) -> None:
        """Bring the conversations in from the store whose latest reply made these calls."""
        for row in await self._store.find_heads(tenant, [calls_head(tenant, calls)]):
            record = await self._store.load(tenant, row.conversation_id)
            if record is not None:
                self._restore(record)

    async def load_key(self, tenant: str, external_key: str) -> None:
        """Bring the conversations under an id from outside in from the store."""
        for record in reversed(await self._store.branches(tenant, external_key)):
            self._restore(record)

    def _knows(self, digest: bytes, ref: HeadRef) -> bool:
        return ref.conversation_id in self._by_id and ref in self._heads.get(digest, ())

    def _restore(self, record: ConversationRecord) -> None:
        known = self._by_id.get(record.id)
        if known is not None and (known.version >= record.version or known.lock.locked()):
            # What is locked is being committed, and the newer version may be its own.
            return
        try:
            conversation = restored(record)
        except ValueError as exc:
            _log.warning("stored conversation not used", reason=str(exc))
            return
        self.add(conversation)
        if record.served_head:
            self.add_head(conversation, record.served_head, record.served_head)
        self.owes(conversation)

    def _forget(self, conversation: Conversation) -> None:
        self.drop_prefix(conversation)
        self._transcripts.pop(conversation.id, None)
        self._settle(conversation.id)
        for digest in conversation.heads:
            self._drop_head(conversation, digest)
        for name in conversation.answered:
            self._answers.pop(response_head(conversation.tenant, name), None)
        if conversation.external_key is not None:
            key = (conversation.tenant, conversation.external_key)
            ids = self._by_key.get(key, [])
            if conversation.id in ids:
                ids.remove(conversation.id)
            if not ids:
                self._by_key.pop(key, None)

    def _trim_prefixes(self) -> None:
        if self._prefix_bytes <= self._max_prefix_bytes:
            return
        for conversation in list(self._by_id.values()):
            self.drop_prefix(conversation)
            if self._prefix_bytes <= self._max_prefix_bytes // 2:
                break


def _ref(row: HeadRecord) -> HeadRef:
    replied = row.kind.startswith(_REPLY)
    served = bytes.fromhex(row.kind.removeprefix(_REPLY)) if replied else row.digest
    return HeadRef(conversation_id=row.conversation_id, served=served)


def reply_kind(served: bytes) -> str:
    """The kind of a reply's head in the store: it names the head it is a reply to."""
    return _REPLY + served.hex()
