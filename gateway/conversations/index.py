"""Finding conversations in memory: by id, by key, by prefix hash, by call ids, by bytes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

from gateway.conversations.conversation import Conversation
from gateway.conversations.known_bodies import KnownBodies
from gateway.conversations.stored_responses import (
    KEPT_PER_CONVERSATION,
    StoredResponse,
    response_hash,
)
from gateway.steering.identity import Awaits, Branch, Incoming, PrefixHashRef
from gateway.steering.identity.rebuilt import tail_key
from gateway.wire.body_prefix import BodyPrefix

_MAX_REFS = 64  # conversations remembered for one hash; common openings collect many
_MAX_HASHES = 128  # the newest of one conversation: 64 turns; the store knows where older ones fork
_MAX_ITEMS = 4096  # items of answers in memory; the store has all

_Calls = tuple[str, tuple[str, ...]]
"""A tenant, and the ids of a reply's calls."""


class ConversationIndex:
    """The conversations in memory; the least recently used ones are dropped."""

    def __init__(
        self, *, max_conversations: int, max_transcripts: int, max_prefix_bytes: int
    ) -> None:
        self._max = max_conversations
        self._by_id: OrderedDict[str, Conversation] = OrderedDict()
        self._by_key: dict[tuple[str, str], list[str]] = {}
        self._prefix_hashes: dict[bytes, list[PrefixHashRef]] = {}
        self._awaited = _AwaitedCalls()
        self._responses: dict[bytes, str] = {}
        self._items: OrderedDict[tuple[str, str], Any] = OrderedDict()
        self._bodies = KnownBodies(max_transcripts, max_prefix_bytes)

    def __len__(self) -> int:
        return len(self._by_id)

    def get(self, conversation_id: str) -> Conversation | None:
        """A conversation in memory, which becomes the most recently used."""
        found = self._by_id.get(conversation_id)
        if found is not None:
            self._by_id.move_to_end(conversation_id)
        return found

    def add(self, conversation: Conversation) -> None:
        """Add a conversation, replacing one of the same id; the next `used` enforces the limit."""
        old = self._by_id.pop(conversation.id, None)
        if old is not None:
            self._forget(old)
        self._by_id[conversation.id] = conversation
        if conversation.external_key is not None:
            key = (conversation.tenant, conversation.external_key)
            self._by_key.setdefault(key, []).append(conversation.id)
        for response in conversation.history.responses.values():
            self._index_response(conversation, response)

    def used(self, conversation: Conversation) -> None:
        """A request of this conversation was read: keep its transcript's caches, drop the oldest.

        They are most of a conversation's memory and can be rebuilt from any request. Of a
        conversation with a call in progress only the bytes are dropped: its run is not stored yet.
        """
        for oldest in self._bodies.use(conversation.id):
            found = self._by_id.get(oldest)
            if found is not None:
                self._bodies.drop(found)
                if found.busy:
                    continue
                found.forget_transcript()
            self._bodies.forget(oldest)
        self._make_room()

    def _make_room(self) -> None:
        """Drop the least recently used ones, but none with a call in progress: until that is
        stored, its run exists only in memory."""
        surplus = max(len(self._by_id) - self._max, 0)
        idle = (found for found in self._by_id.values() if not found.busy)
        for dropped in list(islice(idle, surplus)):
            del self._by_id[dropped.id]
            self._forget(dropped)

    def add_prefix_hash(self, conversation: Conversation, digest: bytes, served: bytes) -> None:
        """A later request whose history has this hash may belong to `conversation`."""
        refs = self._prefix_hashes.setdefault(digest, [])
        name = conversation.id
        for ref in refs:
            if ref.served == served and ref.conversation_id == name:
                return
        refs.insert(0, PrefixHashRef(conversation_id=name, served=served))
        del refs[_MAX_REFS:]
        own = conversation.history.prefix_hashes
        own.append(digest)
        if len(own) > _MAX_HASHES:
            self._drop_prefix_hash(conversation, own.pop(0))

    def _drop_prefix_hash(self, conversation: Conversation, digest: bytes) -> None:
        refs = self._prefix_hashes.get(digest, [])
        refs[:] = [ref for ref in refs if ref.conversation_id != conversation.id]
        if not refs:
            self._prefix_hashes.pop(digest, None)

    def knows(self, digest: bytes, ref: PrefixHashRef) -> bool:
        """Whether the conversation is in memory and known under this hash."""
        return ref.conversation_id in self._by_id and ref in self._prefix_hashes.get(digest, ())

    def known_prefix_hashes(
        self, candidates: Iterable[tuple[int, bytes]]
    ) -> tuple[dict[bytes, list[PrefixHashRef]], dict[str, Branch]]:
        """The known hashes among the candidates, and the branches they name."""
        known: dict[bytes, list[PrefixHashRef]] = {}
        branches: dict[str, Branch] = {}
        for _, digest in candidates:
            refs = self._prefix_hashes.get(digest)
            if refs:
                known[digest] = refs
                for ref in refs:
                    found = self._by_id.get(ref.conversation_id)
                    if found is not None:
                        branches[ref.conversation_id] = found.history.branch
        return known, branches

    def branches_of(self, tenant: str, external_key: str) -> dict[str, Branch]:
        """The branches under a client's id, most recently used first."""
        ids = self._by_key.get((tenant, external_key), ())
        found = [self._by_id[i] for i in ids if i in self._by_id]
        return {c.id: c.history.branch for c in reversed(found)}

    def index_awaited_calls(self, conversation: Conversation) -> None:
        """The latest reply asked for calls: a request with their results is found by them."""
        self._awaited.put(conversation)

    def awaiting_results(self, tenant: str, request: Incoming) -> dict[str, Branch]:
        """The branches whose latest reply made the calls that the request answers.

        Providers use ids again: a request with replies that a conversation never had is not its.
        """
        ids = self._awaited.find(tenant, request.calls)
        held = {i: self._by_id[i].history for i in ids if i in self._by_id}
        return {i: history.branch for i, history in held.items() if history.knows_replies(request)}

    def branches_with_tail(self, tenant: str, tail: bytes) -> list[Branch]:
        """The idle branches whose history is this from its first reply to its latest one."""
        refs = self._prefix_hashes.get(tail_key(tenant, tail), ())
        held = (self._by_id.get(ref.conversation_id) for ref in refs)
        branches = (found.history.branch for found in held if found is not None)
        return [b for b in branches if b.tail == tail and b.awaits is Awaits.ANYTHING]

    def add_response(self, conversation: Conversation, response: StoredResponse) -> None:
        """A later request may continue from this answer by its id."""
        own = conversation.history.responses
        own.pop(response.id, None)
        own[response.id] = response
        self._index_response(conversation, response)
        for name in list(own)[:-KEPT_PER_CONVERSATION]:
            del own[name]
            self._responses.pop(response_hash(conversation.tenant, name), None)

    def _index_response(self, conversation: Conversation, response: StoredResponse) -> None:
        self._responses[response_hash(conversation.tenant, response.id)] = conversation.id
        self.add_prefix_hash(conversation, response.after.digest, response.chain.digest)

    def response(self, tenant: str, response_id: str) -> tuple[str, StoredResponse | None] | None:
        """The answer with this id and its conversation's id; None when the id is unknown."""
        owner = self._responses.get(response_hash(tenant, response_id))
        found = self._by_id.get(owner) if owner is not None else None
        if owner is None:
            return None
        if found is None:
            return "", None
        return found.id, found.history.responses.get(response_id)

    def newest_response(
        self, tenant: str, external_key: str
    ) -> tuple[str, StoredResponse | None] | None:
        """The latest answer under a client's id and its conversation's id; None when the id is
        unknown."""
        ids = self._by_key.get((tenant, external_key))
        if not ids:
            return None
        for name in reversed(ids):
            found = self._by_id.get(name)
            if found is not None and found.history.responses:
                return found.id, next(reversed(found.history.responses.values()))
        return "", None

    def items(self, tenant: str, ids: Iterable[str]) -> dict[str, Any]:
        """The items of answers with these ids, as far as they are in memory."""
        return {name: self._items[tenant, name] for name in ids if (tenant, name) in self._items}

    def keep_items(self, tenant: str, items: Mapping[str, Any]) -> None:
        """Keep items of answers, up to the newest `_MAX_ITEMS`."""
        for name, item in items.items():
            self._items.pop((tenant, name), None)
            self._items[tenant, name] = item
        while len(self._items) > _MAX_ITEMS:
            self._items.popitem(last=False)

    def known_prefix(self, tenant: str, raw: bytes, list_key: str) -> BodyPrefix | None:
        """The longest beginning of a body among the latest requests of all conversations."""
        best: BodyPrefix | None = None
        for sharing in self._with_opening(tenant, raw):
            prefix = sharing.history.prefix
            if prefix is None or (best is not None and best.end >= prefix.end):
                continue
            if prefix.list_key == list_key and prefix.begins(raw):
                best = prefix
        return best

    def conversation_for_prefix(
        self, tenant: str, prefix: BodyPrefix | None
    ) -> Conversation | None:
        """The conversation whose latest request the prefix is, if it still is."""
        if prefix is None:
            return None
        sharing = self._with_opening(tenant, prefix.raw)
        return next((found for found in sharing if found.history.prefix is prefix), None)

    def _with_opening(self, tenant: str, raw: bytes) -> Iterator[Conversation]:
        for conversation_id in self._bodies.with_opening(tenant, raw):
            found = self._by_id.get(conversation_id)
            if found is not None:
                yield found

    def keep_prefix(self, conversation: Conversation) -> None:
        """Make the bytes of the conversation's latest request known, while there is room."""
        if self._bodies.add(conversation):
            for oldest in list(self._by_id.values()):
                self._bodies.drop(oldest)
                if self._bodies.has_room:
                    break

    def drop_prefix(self, conversation: Conversation) -> None:
        """Forget the bytes of a conversation's last request."""
        self._bodies.drop(conversation)

    def _forget(self, conversation: Conversation) -> None:
        self._bodies.drop(conversation)
        self._bodies.forget(conversation.id)
        self._awaited.drop(conversation.id)
        for digest in conversation.history.prefix_hashes:
            self._drop_prefix_hash(conversation, digest)
        for name in conversation.history.responses:
            self._responses.pop(response_hash(conversation.tenant, name), None)
        if conversation.external_key is not None:
            key = (conversation.tenant, conversation.external_key)
            ids = self._by_key.get(key, [])
            if conversation.id in ids:
                ids.remove(conversation.id)
            if not ids:
                self._by_key.pop(key, None)


class _AwaitedCalls:
    """Which conversations wait for the results of which calls."""

    def __init__(self) -> None:
        self._waiting: dict[_Calls, list[str]] = {}
        self._calls: dict[str, _Calls] = {}

    def put(self, conversation: Conversation) -> None:
        """Index a conversation by its latest reply's calls, if that made any."""
        self.drop(conversation.id)
        if conversation.history.branch.reply_calls:
            calls = (conversation.tenant, conversation.history.branch.reply_calls)
            self._waiting.setdefault(calls, []).append(conversation.id)
            self._calls[conversation.id] = calls

    def drop(self, conversation_id: str) -> None:
        """Forget what a conversation waits for."""
        calls = self._calls.pop(conversation_id, None)
        if calls is not None:
            self._waiting[calls].remove(conversation_id)
            if not self._waiting[calls]:
                del self._waiting[calls]

    def find(self, tenant: str, calls: tuple[str, ...]) -> Iterable[str]:
        """The ids of the conversations that wait for these calls."""
        return self._waiting.get((tenant, calls), ())
