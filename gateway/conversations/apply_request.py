"""Applying a request to the history of its conversation, in memory."""

from __future__ import annotations

from gateway.conversations.compaction import compact
from gateway.conversations.conversation import Conversation, RunStart, first_hash
from gateway.conversations.index import ConversationIndex
from gateway.conversations.kept_fold import KeptFold
from gateway.conversations.opening import open_conversation
from gateway.conversations.search import Search
from gateway.steering.identity import ConversationMatch, Incoming, MatchKind
from gateway.steering.identity.rebuilt import extend_tail

_CONTINUING = (MatchKind.CONTINUE, MatchKind.FORK, MatchKind.RETRY)


def apply_request(
    index: ConversationIndex, verdict: ConversationMatch, search: Search, now: float
) -> Conversation | None:
    """The conversation of a matched request, which becomes its latest one; None for a side request.

    `now`: seconds of the epoch, for a conversation that is opened.
    """
    found = _continued(index, verdict, search, now)
    if found is None:
        return None
    response = search.response
    if response is not None and found.run.fold is None and verdict.kind in _CONTINUING:
        found.run.kept_fold = None
        found.run.start = RunStart(
            snapshot=response.snapshot,
            offset=search.request.earlier_count,
            logged_in=search.response_of,
        )
    _remember(index, found, search)
    return found


def _continued(
    index: ConversationIndex, verdict: ConversationMatch, search: Search, now: float
) -> Conversation | None:
    incoming = search.incoming
    if verdict.kind is MatchKind.SIDE:
        return None
    current = index.get(verdict.conversation_id) if verdict.conversation_id else None
    if current is not None:
        _check_kept_fold(current, incoming)
    if current is not None and verdict.kind is MatchKind.RETRY:
        current.history.branch = current.history.branch.retried()
        return current
    if current is not None and verdict.kind is MatchKind.CONTINUE:
        _check_fold(current, incoming)
        _extend(current, incoming)
        return current
    if current is not None and verdict.kind is MatchKind.COMPACTION:
        compact(current, incoming)
        current.history.chain = None
        _extend(current, incoming)
        return current
    return open_conversation(
        index, verdict, search.identity, search.given, incoming, search.tenant, now
    )


def _remember(index: ConversationIndex, found: Conversation, search: Search) -> None:
    """Keep the bytes and the hash state of this request, for the next one to continue from."""
    index.drop_prefix(found)
    request, history, hashes = search.request, found.history, search.incoming.hashes
    read = history.chain.count if history.chain is not None and hashes.start else 0
    fresh = max(read - hashes.start, 0)
    history.seen.add(hashes.messages[fresh:])
    if not read:
        history.tail = search.tail if hashes.start else b""
    if history.tail is not None:
        history.tail = extend_tail(history.tail, hashes, fresh)
    history.prefix = None if request.earlier is not None else request.prefix
    history.chain = hashes.state
    if not history.root:
        history.root = _root(index, found, search)
    index.keep_prefix(found)
    index.used(found, len(request.raw))
    index.add_prefix_hash(found, hashes.full, hashes.full)


def _root(index: ConversationIndex, found: Conversation, search: Search) -> bytes:
    """The hash of the history's first message."""
    hashes = search.incoming.hashes
    root = search.root if hashes.start else b""
    branch = found.history.branch
    parent = index.get(branch.parent) if branch.parent else None
    if parent is not None and search.request.earlier is not None:
        root = parent.history.root
    return root or first_hash(hashes)


def _extend(conversation: Conversation, incoming: Incoming) -> None:
    history = conversation.history
    history.branch = history.branch.extended(incoming)


def _check_fold(conversation: Conversation, incoming: Incoming) -> None:
    """Drop the fold when the messages it has read are at other positions in this request.

    A client may echo one reply as two messages, or add a system message: the same history, but no
    longer the same positions.
    """
    fold, served = conversation.run.fold, conversation.history.branch.served_hash
    if fold is not None and not KeptFold(fold=fold, digest=served).has_read(incoming.hashes):
        conversation.run.fold = None


def _check_kept_fold(conversation: Conversation, incoming: Incoming) -> None:
    """Drop what was read before another gateway went on, unless this request begins with it."""
    kept = conversation.run.kept_fold
    if kept is not None and not kept.has_read(incoming.hashes):
        conversation.run.kept_fold = None
