"""Conversation identity: which conversation a request belongs to, and how it changes it.

Pure: the caller (`conversations/resolve` and `apply_reply`) does the look-ups between these steps:

1. `identify`: the id that the client sends, or FINGERPRINT when it sends none. `conversation_id`
   turns it into the gateway's id.
2. `read_request`: the prefix hashes of the history and the agent's signature. The caller looks up
   `hashes.candidates` among the stored prefix hashes.
3. `match`: retry, continue, fork, compaction, side request or new.
4. New and fork: `request.open_branch`. Continue and compaction: `branch.extended`. Retry
   (`branch.retried`) and side request do not change its history. The prefix hash of the request is
   stored at once, so that a request that arrives before the reply can be matched.
5. After the reply: its prefix hash is stored, and `branch.answered` (or `branch.failed`) follows.
"""

from gateway.steering.identity.branch import (
    Arrival,
    Awaits,
    Branch,
    Incoming,
    PrefixHashRef,
    is_client_retry,
    read_request,
)
from gateway.steering.identity.ids import (
    FINGERPRINT,
    ID_SOURCES,
    ConversationSettings,
    Identity,
    calls_hash,
    child_id,
    clean_call_ids,
    conversation_id,
    identify,
    looks_unique,
    signature,
)
from gateway.steering.identity.matching import ConversationMatch, MatchKind, match
