"""Whether a match made from memory holds without asking the store, and what is left without it."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from gateway.steering.identity import (
    Branch,
    ConversationMatch,
    Incoming,
    MatchKind,
    PrefixHashRef,
    conversation_id,
)

_Known = Mapping[bytes, Sequence[PrefixHashRef]]


def is_settled(
    verdict: ConversationMatch,
    incoming: Incoming,
    known: _Known,
    branches: Mapping[str, Branch],
    *,
    shared: bool,
) -> bool:
    """Whether the store could not change the match: it may know more than memory when another
    gateway, or this one before its last start, served requests of the same history.

    `shared`: other gateways use the store at the same time. Then memory lacks the latest requests
    of conversations that it knows, and conversations that fit better.
    """
    if shared and verdict.kind in (MatchKind.RETRY, MatchKind.COMPACTION):
        return False
    match verdict.kind:
        case MatchKind.RETRY:
            # Other call ids than those served may be a later turn of an agent that repeats itself.
            served = branches[str(verdict.conversation_id)].served_calls
            return not incoming.calls or served in ((), incoming.calls)
        case MatchKind.SIDE:
            return bool(branches) or not incoming.hashes.state.turns
        case MatchKind.COMPACTION:
            return branches[str(verdict.conversation_id)].awaits_results_of(incoming)
        case MatchKind.CONTINUE:
            # Another gateway may have served what the client marks as a retry.
            if incoming.client_retry:
                return False
            return _is_next(verdict, incoming, known, echoed=shared)
        case MatchKind.NEW if verdict.conversation_id is None:
            # Without assistant turns the request is new: the store could only know a history.
            return not (incoming.hashes.state.turns or incoming.client_retry)
        case _:
            return False


def _is_next(
    verdict: ConversationMatch, incoming: Incoming, known: _Known, *, echoed: bool
) -> bool:
    """Whether the request is exactly one reply ahead of what memory knows.

    `echoed`: only if that reply is known as the client sends it. Another conversation may have had
    the same request, and this reply to it.
    """
    ahead = incoming.hashes.turns_after(verdict.position)
    if echoed and ahead:
        return False
    prefix_hash = verdict.prefix_hash
    if prefix_hash is None or ahead > 1:
        return False
    refs = [r for r in known[prefix_hash] if r.conversation_id == verdict.conversation_id]
    # No turn ahead: the hash covers the reply already. One turn: it must be the hash of a request.
    return not ahead or any(ref.served == prefix_hash for ref in refs)


def apart(
    verdict: ConversationMatch, tenant: str, given: str | None, incoming: Incoming
) -> ConversationMatch:
    """A new conversation while the store cannot be read: under an id that nothing stored can have,
    so that no row of another run is mixed with its own. What the client's id stands for is named as
    its parent when the request has a history."""
    name = conversation_id(tenant, incoming.hashes.full.hex(), secrets.token_hex(8))
    parent = given if incoming.hashes.state.turns else None
    return replace(verdict, conversation_id=name, parent=verdict.parent or parent)
