"""Whether a match made from memory holds without asking the store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gateway.steering.identity import (
    Branch,
    ConversationMatch,
    Incoming,
    MatchKind,
    PrefixHashRef,
)

_Known = Mapping[bytes, Sequence[PrefixHashRef]]


def is_settled(
    verdict: ConversationMatch,
    incoming: Incoming,
    known: _Known,
    branches: Mapping[str, Branch],
) -> bool:
    """Whether the store could not change the match: it may know more than memory when another
    gateway, or this one before its last start, served requests of the same history."""
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
            return _is_next(verdict, incoming, known)
        case MatchKind.NEW if verdict.conversation_id is None:
            # Without assistant turns the request is new: the store could only know a history.
            return not (incoming.hashes.state.turns or incoming.client_retry)
        case _:
            return False


def _is_next(verdict: ConversationMatch, incoming: Incoming, known: _Known) -> bool:
    """Whether the request is exactly one reply ahead of what memory knows."""
    ahead = incoming.hashes.turns_after(verdict.position)
    prefix_hash = verdict.prefix_hash
    if prefix_hash is None or ahead > 1:
        return False
    refs = [r for r in known[prefix_hash] if r.conversation_id == verdict.conversation_id]
    # No turn ahead: the hash covers the reply already. One turn: it must be the hash of a request.
    return not ahead or any(ref.served == prefix_hash for ref in refs)
