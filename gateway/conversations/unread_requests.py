"""The conversation of a request whose messages are not read: by the client's id, or one of its own.

Nothing is known of its history, so that nothing of the conversation's history changes, and no later
request is matched with it but by that id.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from contextlib import suppress

from gateway.conversations.conversation import Conversation
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
    read_request,
)
from gateway.stores.protocols import StoreError
from gateway.wire.prefix_hash import ChainState
from gateway.wire.values import replace


class UnreadResolver:
    """Finds the conversations of requests that are not read; changes memory only."""

    def __init__(
        self, index: ConversationIndex, loader: ConversationLoader, settings: ConversationSettings
    ) -> None:
        self._index = index
        self._loader = loader
        self._settings = settings

    async def resolve(
        self, request: SteeredRequest, headers: Mapping[str, str], tenant: str, now: float
    ) -> tuple[Resolved, Conversation]:
        """What the record needs, and the conversation; `now` in seconds of the epoch.

        An id that several conversations may share does not say which one it is.
        """
        identity = identify(headers, request.body, self._settings)
        if identity.value is None or identity.weak:
            identity = Identity(source=FINGERPRINT)
        given = conversation_id(tenant, identity.value) if identity.value is not None else None
        found = await self._known(tenant, identity.value, given)
        incoming = _without_history(request, headers, tenant, found)
        kind = MatchKind.NEW if found is None else MatchKind.CONTINUE
        verdict = ConversationMatch(kind=kind, conversation_id=found.id if found else None)
        if found is None:
            found = open_conversation(self._index, verdict, identity, given, incoming, tenant, now)
            # No hash: a request that is read later finds it by its id alone, and begins a run.
            branch = replace(found.history.branch, served_hash=b"", awaits=Awaits.ANYTHING)
            found.history.branch = branch
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
