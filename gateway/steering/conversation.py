"""Conversation identity: which conversation a request belongs to, and what it does to it.

The way of a request through these names:

1. `identify(headers, body, settings)`: the id the client sends, or a call for the fingerprint;
   `conversation_id(tenant, value)` makes it ours.
2. `read_request(headers, body, tenant)`: the chained digests of the history and the agent's
   signature. The shell looks up `heads.candidates()` among the stored heads.
3. `match(request, known, branches, conversation_id=...)`: retry, continue, fork, compaction, side
   request or new.
4. New and fork: `request.opens(id)`; continue and compaction: `branch.extended(request)`; retry and
   side leave the branch alone. A head of the request is stored at once, so that a request that
   comes while this one is under way finds it.
5. After the reply: store the head of `extend(request.heads.state, [reply_message(message)])` for
   each choice and put `branch.answered(...)` in the place of the branch; `branch.failed(...)` when
   there is no whole reply.
"""

from __future__ import annotations

from gateway.steering.identity.branch import Awaits, Branch, HeadRef, Incoming, read_request
from gateway.steering.identity.ids import (
    calls_head,
    child_id,
    conversation_id,
    is_random,
    sane_calls,
    signature,
)
from gateway.steering.identity.matching import Match, MatchKind, identity_label, match
from gateway.steering.identity.settings import ConversationSettings
from gateway.steering.identity.sources import FINGERPRINT, ID_SOURCES, Identity, identify

__all__ = [
    "FINGERPRINT",
    "ID_SOURCES",
    "Awaits",
    "Branch",
    "ConversationSettings",
    "HeadRef",
    "Identity",
    "Incoming",
    "Match",
    "MatchKind",
    "calls_head",
    "child_id",
    "conversation_id",
    "identify",
    "identity_label",
    "is_random",
    "match",
    "read_request",
    "sane_calls",
    "signature",
]
