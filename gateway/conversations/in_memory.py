"""Conversations and answers in memory.

ConversationIndex  conversations by id, by key, by prefix hash, by call ids, by bytes
StoredAnswers      answers that later requests name by id: the deployment that stores each, the
                   guidance to take out of it, and the pending call that it completes"""

from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Container, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

from cachetools import FIFOCache, LRUCache

from gateway.config.settings import SteeringSettings
from gateway.conversations.conversation import (
    KEPT_PER_CONVERSATION,
    Conversation,
    StoredResponse,
    response_hash,
)
from gateway.conversations.known_prefixes import GrowingBodies, KnownBodies, TranscriptsInMemory
from gateway.exchange import UpstreamReply
from gateway.steering.identity import Awaits, Branch, Incoming, PrefixHashRef
from gateway.steering.identity.rebuilt import is_window_of, latest_turn, tail_key
from gateway.steering.sub_agents import Order, orders_in
from gateway.upstream.deployments import Target
from gateway.values import FieldDict, Fields
from gateway.wire.body_prefix import BodyPrefix
from gateway.wire.echo import EchoFilter

_MAX_PENDING = 1024  # background calls; the oldest over it stay recorded without an answer
_MAX_TARGETS = 8192  # answers whose deployment is known; a few hundred bytes each
_MAX_ECHO_CHARS = 4 * 2**20  # of instructions that stored answers may repeat
_MAX_REFS = 64  # conversations remembered for one hash; common openings collect many
_MAX_HASHES = 128  # the newest of one conversation: 64 turns; the store knows where older ones fork
_MAX_ITEMS = 4096  # items of answers in memory; the store has all
_MAX_ORDERS = 4096  # prompts of calls that no sub-agent has begun with yet
_MAX_CALLS = 1024  # replies with calls since a conversation began last, of some kB each
# Records a call: its answer in the shape of a chat completion, or None for none; and its usage.
Settle = Callable[[UpstreamReply], Awaitable[None]]
_Named = tuple[str, str]  # a tenant, and an id of its
_Ordered = tuple[Order, str, int]  # a call, the conversation that made it, and its run


class ConversationIndex:
    """The conversations in memory; the least recently used ones are dropped."""

    def __init__(self, settings: SteeringSettings):
        self._max = settings.max_conversations_in_memory
        most = settings.max_transcripts_in_memory
        self._by_id: OrderedDict[str, Conversation] = OrderedDict()
        self._by_key: dict[tuple[str, str], list[str]] = {}
        self._prefix_hashes: dict[bytes, list[PrefixHashRef]] = {}
        self._awaited = _Latest()
        self._replies = _Latest()
        self._responses: dict[bytes, str] = {}
        self._items: FIFOCache[_Named, Any] = FIFOCache(_MAX_ITEMS)
        self.bodies = KnownBodies(most, int(settings.max_prefix_memory_mb * 2**20))
        transcript_bytes = int(settings.max_transcript_memory_mb * 2**20)
        self._transcripts = TranscriptsInMemory(most, transcript_bytes)
        self.growing_bodies = GrowingBodies()
        self._orders: FIFOCache[_Named, list[_Ordered]] = FIFOCache(_MAX_ORDERS)
        self._calls: deque[tuple[FieldDict, str, str, int]] = deque(maxlen=_MAX_CALLS)

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

    def refreshed(self, conversation: Conversation, responses: Iterable[StoredResponse]) -> None:
        """A conversation in memory has taken over its stored state, with these answers: it is the
        latest one of its client's id."""
        if conversation.external_key is not None:
            ids = self._by_key[conversation.tenant, conversation.external_key]
            ids.remove(conversation.id)
            ids.append(conversation.id)
        own = conversation.history.responses
        for response in responses:
            # Of an answer that was given here, more may be known than is stored.
            self.add_response(conversation, own.get(response.id, response))

    def used(self, conversation: Conversation, body_bytes: int) -> None:
        """A request of this conversation was read: its bytes are known while there is room. Keep
        its transcript's caches, drop the oldest. The caches are most of a conversation's memory and
        can be rebuilt from any request. Of a conversation with a call in progress only the bytes
        are dropped: its run is not stored yet."""
        is_full = self.bodies.add(conversation)
        surplus = self._transcripts.use(conversation.id, body_bytes)
        if is_full:
            for known in list(self._by_id.values()):
                self.bodies.drop(known)
                if self.bodies.has_room:
                    break
        for oldest in surplus:
            found = self._by_id.get(oldest)
            if found is not None:
                self.bodies.drop(found)
                if found.busy:
                    continue
                found.forget_transcript()
            self._transcripts.forget(oldest)
        if (too_many := len(self._by_id) - self._max) > 0:
            # None with a call in progress: until that is stored, its run exists only in memory.
            idle = (found for found in self._by_id.values() if not found.busy)
            for dropped in list(islice(idle, too_many)):
                del self._by_id[dropped.id]
                self._forget(dropped)

    def add_calls(self, conversation: Conversation, message: FieldDict) -> None:
        """The latest reply of a conversation has calls, which may start sub-agents. It is read when
        one begins."""
        self._calls.append((message, conversation.tenant, conversation.id, conversation.run.index))

    def _read_calls(self) -> None:
        while self._calls:
            message, tenant, maker, run = self._calls.popleft()
            for order in orders_in([message]):
                for name in (order.prompt, order.name):
                    kept = self._orders.setdefault((tenant, name), [])
                    kept.append((order, maker, run))
                    del kept[:-_MAX_REFS]

    def take_order(
        self, begun: Conversation, name: str, *, known: bool
    ) -> tuple[Order | None, str]:
        """The call by which a conversation begins, with the conversation that made it, which is in
        the same run still: one of its tree if the client says so (`known`), else another agent. A
        call is taken once."""
        self._read_calls()
        kept = self._orders.get((begun.tenant, name), [])
        signature = begun.history.branch.signature
        for each in kept:
            order, maker, run = each
            parent = self._by_id.get(maker)
            if parent is None or parent.run.index != run or parent is begun:
                continue
            other = parent.history.branch.signature != signature
            if (known and parent.root_id == begun.root_id) or (other and not known):
                kept.remove(each)
                return order, maker
        return None, ""

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
        hashes = self._prefix_hashes
        held = self._by_id
        known = {digest: hashes[digest] for _, digest in candidates if digest in hashes}
        ids = (ref.conversation_id for refs in known.values() for ref in refs)
        return known, {name: held[name].history.branch for name in ids if name in held}

    def branches_of(self, tenant: str, external_key: str) -> dict[str, Branch]:
        """Returns the branches under a client's id, most recently used first, without branches
        that were never read."""
        ids = self._by_key.get((tenant, external_key), ())
        found = [self._by_id[i].history.branch for i in ids if i in self._by_id]
        return {b.conversation_id: b for b in reversed(found) if b.served_hash}

    def index_reply(self, conversation: Conversation) -> None:
        """A request with the results of the latest reply's calls is found by them, one that has
        only part of the history by the reply."""
        branch = conversation.history.branch
        tenant = conversation.tenant
        self._awaited.put(conversation.id, tenant, branch.reply_calls)
        self._replies.put(conversation.id, tenant, branch.reply_digest)

    def awaiting_results(self, tenant: str, request: Incoming) -> dict[str, Branch]:
        """The branches whose latest reply made the calls that the request answers. Providers use
        ids again: a request with replies that a conversation never had is not its."""
        ids = self._awaited.find(tenant, request.calls)
        held = {i: self._by_id[i].history for i in ids if i in self._by_id}
        return {i: history.branch for i, history in held.items() if history.knows_replies(request)}

    def known_under(self, prefix_hash: bytes | None) -> set[str]:
        """The ids of the conversations with this prefix hash."""
        return {ref.conversation_id for ref in self._prefix_hashes.get(prefix_hash or b"", ())}

    def windows(self, tenant: str, request: Incoming, alike: Container[str]) -> Iterator[str]:
        """The ids of the conversations whose latest reply the request follows with only part of
        the history before it, most recently answered first; `alike`: those that begin like it."""
        for digest in latest_turn(request.hashes):
            for name in reversed(self._replies.find(tenant, digest)):
                found = self._by_id.get(name)
                if found is not None and is_window_of(
                    request, found.history.branch, found.history.seen, begins=name in alike
                ):
                    yield name

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
        if owner is None:
            return None
        found = self._by_id.get(owner)
        if found:
            return (owner, found.history.responses.get(response_id))
        return ("", None)

    def newest_response(
        self, tenant: str, external_key: str
    ) -> tuple[str, StoredResponse | None] | None:
        """The latest answer under a client's id and its conversation's id; None when the id is
        unknown."""
        ids = self._by_key.get((tenant, external_key), ())
        for found in filter(None, map(self._by_id.get, reversed(ids))):
            if found.history.responses:
                return found.id, next(reversed(found.history.responses.values()))
        if ids:
            return ("", None)
        return None

    def items(self, tenant: str, ids: Iterable[str]) -> FieldDict:
        """The items of answers with these ids, as far as they are in memory."""
        return {name: self._items[tenant, name] for name in ids if (tenant, name) in self._items}

    def keep_items(self, tenant: str, items: Fields) -> None:
        """Keep items of answers, up to the newest `_MAX_ITEMS`."""
        for name, item in items.items():
            self._items[tenant, name] = item

    def conversation_for_prefix(self, tenant: str, prefix: BodyPrefix) -> Conversation | None:
        """The conversation whose latest request the prefix is, if it still is."""
        return self._by_id.get(self.bodies.conversation_of(tenant, prefix) or "")

    def _forget(self, conversation: Conversation) -> None:
        self.bodies.drop(conversation)
        self._transcripts.forget(conversation.id)
        self._awaited.drop(conversation.id)
        self._replies.drop(conversation.id)
        for digest in conversation.history.prefix_hashes:
            self._drop_prefix_hash(conversation, digest)
        for name in conversation.history.responses:
            self._responses.pop(response_hash(conversation.tenant, name), None)
        key = (conversation.tenant, conversation.external_key or "")
        if conversation.id in (ids := self._by_key.get(key, [])):
            ids.remove(conversation.id)
            if not ids:
                del self._by_key[key]


class _Latest:
    """The conversations by what their latest reply has, in the order in which it came."""

    def __init__(self) -> None:
        self._ids: dict[tuple[str, Any], list[str]] = {}
        self._keys: dict[str, tuple[str, Any]] = {}

    def put(self, name: str, tenant: str, value: Any) -> None:
        """Index a conversation by this; by nothing when it is empty."""
        self.drop(name)
        if value:
            key = self._keys[name] = (tenant, value)
            self._ids.setdefault(key, []).append(name)

    def drop(self, name: str) -> None:
        """Forget what the latest reply of a conversation has."""
        key = self._keys.pop(name, None)
        if key is not None:
            self._ids[key].remove(name)
            if not self._ids[key]:
                del self._ids[key]

    def find(self, tenant: str, value: Any) -> Sequence[str]:
        """The ids of the conversations whose latest reply has this."""
        return self._ids.get((tenant, value), ())


class PendingResponses(FIFOCache[_Named, Settle]):
    """Calls whose answers are made in the background, by tenant and answer id; each is settled
    once, when a request brings the finished answer."""

    async def settle(self, tenant: str, response_id: str, reply: UpstreamReply) -> None:
        """Record the answer, or that there will be none; a second call does nothing."""
        settle = self.pop((tenant, response_id), None)
        if settle is not None:
            await settle(reply)


class ResponseTargets:
    """The deployments that store answers, by tenant and answer id: later requests for the answer,
    or that continue from it, have to go there."""

    def __init__(self) -> None:
        self._targets: LRUCache[_Named, Target] = LRUCache(_MAX_TARGETS)
        self._given: FIFOCache[_Named, None] = FIFOCache(_MAX_TARGETS)

    def knows(self, tenant: str, response_id: str) -> bool:
        """Whether a tenant was given an answer by this gateway, as far as it is remembered."""
        return (tenant, response_id) in self._given

    def put(self, tenant: str, response_id: str, target: Target) -> None:
        """Remember that the answer came from a deployment's target, and who was given it."""
        self._given[tenant, response_id] = None
        if target.key and target.lane == "native":  # others store no answers, or are the default
            self._targets[tenant, response_id] = target

    def find(self, tenant: str, response_id: str) -> Target | None:
        """The target that stores the answer, if it is known."""
        return self._targets.get((tenant, response_id))


class AnswerEchoes:
    """Filters that take the guidance out of a stored answer, which repeats the instructions it was
    asked with, whenever a later request reads it: by tenant and answer id."""

    def __init__(self) -> None:
        self._filters: FIFOCache[_Named, EchoFilter] = FIFOCache(
            _MAX_ECHO_CHARS, getsizeof=lambda echo: echo.size
        )

    def put(self, tenant: str, response_id: str, echo: EchoFilter) -> None:
        """Remember the filter of an answer."""
        if echo.size <= _MAX_ECHO_CHARS:
            self._filters[tenant, response_id] = echo

    def find(self, tenant: str, response_id: str) -> EchoFilter | None:
        """A filter for one reading of the answer; None if nothing is to be taken out."""
        known = self._filters.get((tenant, response_id))
        return known and known.fresh()


class StoredAnswers:
    """The answers that providers store, as far as this process knows them."""

    def __init__(self) -> None:
        self.targets = ResponseTargets()
        self.echoes = AnswerEchoes()
        self.pending = PendingResponses(_MAX_PENDING)

    def has(self, tenant: str, response_id: str) -> bool:
        """Whether anything is known of an answer that the store could tell."""
        return (
            (tenant, response_id) in self.pending
            or self.targets.find(tenant, response_id) is not None
            or self.echoes.find(tenant, response_id) is not None
        )
