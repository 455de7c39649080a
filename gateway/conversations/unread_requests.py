"""The conversation of a request whose messages are not read: by the client's id, or by its bytes.

Without an id it goes on the conversation of the unread body whose messages it begins with; else it
is one of its own. Nothing is known of its history, so that nothing of the conversation's history
changes, and no request that is read is matched with it but by the client's id.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from contextlib import suppress

from msgspec.structs import replace

from gateway.conversations.conversation import Conversation
from gateway.conversations.growing_bodies import Growth, messages_of
from gateway.conversations.index import ConversationIndex
from gateway.conversations.loading import ConversationLoader
from gateway.conversations.opening import open_conversation
from gateway.conversations.resolve import Resolved
from gateway.dialects import SteeredRequest
from gateway.steering.identity import (
    FINGERPRINT,
    Awaits,
    ConversationMatch,
    ConversationSettings,
    Identity,
    Incoming,
    MatchKind,
    conversation_id,
    identify,
    identity_label,
    is_client_retry,
    read_request,
)
from gateway.stores.protocols import StoreError
from gateway.wire.prefix_hash import ChainState


class UnreadResolver:
    """Finds the conversations of requests that are not read; changes memory only."""

    def __init__(
        self,
        index: ConversationIndex,
        loader: ConversationLoader,
        settings: ConversationSettings,
    ) -> None:
        self._index = index
        self._loader = loader
        self._settings = settings

    async def resolve(
        self,
        request: SteeredRequest,
        headers: Mapping[str, str],
        tenant: str,
        key: str,
        now: float,
    ) -> tuple[Resolved, Conversation]:
        """What the record needs, and the conversation; `now` in seconds of the epoch.

        `key`: the name of the gateway key that was sent. An id that several conversations may share
        does not say which one it is.
        """
        identity = identify(headers, request.body, self._settings)
        if identity.value is None or identity.weak:
            identity = Identity(source=FINGERPRINT)
        given = conversation_id(tenant, identity.value) if identity.value is not None else None
        owner = (tenant, key, request.dialect.name, request.model)
        grown = None
        if given is not None:
            found = await self._known(tenant, identity.value, given)
        else:
            grown = await self._grown(request, headers, owner)
            earlier = grown.conversation_id if grown is not None else None
            found = await self._earlier(tenant, earlier) if earlier is not None else None
        incoming = _without_history(request, headers, tenant, found)
        kind = MatchKind.NEW if found is None else MatchKind.CONTINUE
        verdict = ConversationMatch(kind=kind, conversation_id=found.id if found else None)
        if found is None:
            found = open_conversation(self._index, verdict, identity, given, incoming, tenant, now)
            # No hash: a request that is read later finds it by its id alone, and begins a run.
            branch = replace(found.history.branch, served_hash=b"", awaits=Awaits.ANYTHING)
            found.history.branch = branch
        if grown is not None:
            self._index.growing_bodies.keep(owner, replace(grown, conversation_id=found.id))
        read = found.history.prefix
        self._index.used(found, len(read.raw) if read is not None else 0)
        resolved = Resolved(
            label=identity_label(identity.source, kind),
            source=identity.source,
            match=verdict,
            incoming=incoming,
            conversation=found,
            conversation_id=found.id,
        )
        return resolved, found

    async def _grown(
        self, request: SteeredRequest, headers: Mapping[str, str], owner: tuple[str, ...]
    ) -> Growth | None:
        """The body beside the earlier ones; None for one whose messages have no place."""
        messages = messages_of(request.raw, request.spans(request.list_key))
        if messages is None:
            return None
        return await self._index.growing_bodies.find(
            owner, messages, again=is_client_retry(headers)
        )

    async def _earlier(self, tenant: str, name: str) -> Conversation | None:
        """The conversation of an earlier body, from memory or the store."""
        if self._index.get(name) is None:
            with suppress(StoreError):
                await self._loader.load(tenant, name)
        return self._index.get(name)

    async def _known(
        self, tenant: str, value: str | None, given: str | None
    ) -> Conversation | None:
        """The conversation that the client's id names, from memory or the store."""
        if value is None or given is None:
            return None
        if self._index.get(given) is None:
            with suppress(StoreError):
                await self._loader.load_key(tenant, value)
        return self._index.get(given)


def _without_history(
    request: SteeredRequest,
    headers: Mapping[str, str],
    tenant: str,
    conversation: Conversation | None,
) -> Incoming:
    """The request with a history that equals no other, as long as what is known of this one."""
    chain = conversation.history.chain if conversation is not None else None
    root = secrets.token_bytes(16)
    count = chain.count if chain is not None else 0
    state = ChainState(root=root, digest=root, count=count)
    incoming = read_request(headers, request.body, tenant, own=())
    hashes = replace(incoming.hashes, start=count, digests=(root,), state=state)
    return replace(incoming, hashes=hashes)
