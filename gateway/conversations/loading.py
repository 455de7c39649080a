"""Loading conversations from the store when they are not in memory."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from gateway.conversations.codec import from_record
from gateway.conversations.index import ConversationIndex
from gateway.conversations.refresh import can_refresh, refresh
from gateway.conversations.stored_responses import StoredResponse, response_hash
from gateway.observability.logging import get_logger
from gateway.steering.identity import Incoming, PrefixHashRef, calls_hash
from gateway.steering.identity.rebuilt import latest_turn, newest_key, tail_key
from gateway.stores.protocols import StateStore
from gateway.stores.records import ConversationRecord, PrefixHashRecord
from gateway.wire.prefix_hash import PrefixHashes

_REPLY = "reply:"

_log = get_logger("gateway.conversations")


class ConversationLoader:
    """Loads conversations into an index: by id, prefix hash, awaited calls or answer id."""

    def __init__(self, index: ConversationIndex, store: StateStore) -> None:
        self._index = index
        self._store = store

    async def load_key(self, tenant: str, external_key: str) -> None:
        """Load the conversations under a client's id."""
        for record in reversed(await self._store.branches(tenant, external_key)):
            self._restore(record)

    async def load_prefix_hashes(self, tenant: str, incoming: Incoming) -> None:
        """Load the conversations with a prefix hash in this history.

        A conversation in memory is loaded again when the store has more hashes of it: then another
        gateway has served it since.
        """
        digests = [digest for _, digest in reversed(incoming.hashes.candidates)]
        rows = await self._store.find_prefix_hashes(tenant, digests) if digests else []
        refs = [(row, _ref(row)) for row in rows]
        wanted = {
            row.conversation_id for row, ref in refs if not self._index.knows(row.digest, ref)
        }
        for conversation_id in wanted:
            await self.load(tenant, conversation_id)
        # The newest is added last, because the index drops the oldest hashes first.
        for row, ref in reversed(refs):
            found = self._index.get(row.conversation_id)
            if found is not None:
                self._index.add_prefix_hash(found, row.digest, ref.served)

    async def is_current(self, tenant: str, conversation_id: str | None) -> bool:
        """Whether memory has the conversation as it is stored; if not, it is loaded.

        Another gateway may have continued it with another history that began alike.
        """
        known = self._index.get(conversation_id) if conversation_id else None
        if known is None or known.lock.locked():
            return True
        if await self._store.version(tenant, known.id) <= known.unsaved.version:
            return True
        await self.load(tenant, known.id)
        return False

    async def load_awaiting_results(self, tenant: str, calls: Iterable[str]) -> None:
        """Load the conversations whose latest reply made these calls."""
        for row in await self._store.find_prefix_hashes(tenant, [calls_hash(tenant, calls)]):
            await self.load(tenant, row.conversation_id)

    async def load_newest(self, tenant: str, hashes: PrefixHashes) -> None:
        """Load the conversations whose latest reply is the one that this history follows, as far as
        their clients have sent only part of theirs before."""
        keys = [newest_key(tenant, digest) for digest in latest_turn(hashes)[1:]]
        for row in await self._store.find_prefix_hashes(tenant, keys) if keys else ():
            await self.load(tenant, row.conversation_id)

    async def load_tail(self, tenant: str, tail: bytes) -> None:
        """Load the conversations whose history is this from its first reply to its latest one."""
        key = tail_key(tenant, tail)
        for row in await self._store.find_prefix_hashes(tenant, [key]):
            await self.load(tenant, row.conversation_id)
            found = self._index.get(row.conversation_id)
            if found is not None:
                self._index.add_prefix_hash(found, key, found.history.branch.served_hash)

    async def response(self, tenant: str, response_id: str) -> tuple[str, StoredResponse | None]:
        """The answer with this id, and its conversation's id; ("", None) when it is unknown."""
        found = self._index.response(tenant, response_id)
        if found is None:
            hash_of_id = response_hash(tenant, response_id)
            for row in await self._store.find_prefix_hashes(tenant, [hash_of_id]):
                await self.load(tenant, row.conversation_id)
            found = self._index.response(tenant, response_id)
        return found or ("", None)

    async def newest_response(
        self, tenant: str, external_key: str
    ) -> tuple[str, StoredResponse | None]:
        """The latest answer under a client's id, and its conversation's id."""
        found = self._index.newest_response(tenant, external_key)
        if found is None:
            await self.load_key(tenant, external_key)
            found = self._index.newest_response(tenant, external_key)
        return found or ("", None)

    async def items(self, tenant: str, ids: Iterable[str]) -> dict[str, Any]:
        """The items with these ids, from memory or the store, as far as they are known."""
        wanted = list(dict.fromkeys(ids))
        found = self._index.items(tenant, wanted)
        if missing := [name for name in wanted if name not in found]:
            for name, content in (await self._store.find_items(tenant, missing)).items():
                found[name] = json.loads(content)
            self._index.keep_items(tenant, found)
        return found

    async def load(self, tenant: str, conversation_id: str) -> None:
        """Load one conversation, or its newer version."""
        record = await self._store.load(tenant, conversation_id)
        if record is not None:
            self._restore(record)

    def _restore(self, record: ConversationRecord) -> None:
        known = self._index.get(record.id)
        if known is not None and (known.unsaved.version >= record.version or known.lock.locked()):
            # A locked conversation is being stored: the newer version may be its own.
            return
        try:
            conversation = from_record(record)
        except ValueError as exc:
            _log.warning("stored conversation cannot be read", reason=str(exc))
            return
        if known is not None and can_refresh(known, conversation):
            responses = conversation.history.responses
            refresh(known, conversation)
            self._index.refreshed(known, responses.values())
            conversation = known
        else:
            self._index.add(conversation)
        served, echoed = record.served_head, conversation.history.branch.echoed_hash
        if served:
            self._index.add_prefix_hash(conversation, served, served)
        if served and echoed:
            self._index.add_prefix_hash(conversation, echoed, served)
        self._index.index_reply(conversation)


def reply_kind(served: bytes) -> str:
    """The kind of a reply's prefix hash in the store: it names the hash it is a reply to."""
    return _REPLY + served.hex()


def _ref(row: PrefixHashRecord) -> PrefixHashRef:
    replied = row.kind.startswith(_REPLY)
    served = bytes.fromhex(row.kind.removeprefix(_REPLY)) if replied else row.digest
    return PrefixHashRef(conversation_id=row.conversation_id, served=served)
