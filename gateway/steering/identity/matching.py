"""Matches a request to a known conversation: does it continue, fork or rewrite it?"""

from collections.abc import Mapping, Sequence
from enum import StrEnum

from gateway.steering.identity.branch import (
    Arrival,
    Awaits,
    Branch,
    Branches,
    Found,
    Incoming,
    PrefixHashRef,
)
from gateway.steering.identity.compaction import Named, rewritten
from gateway.steering.identity.ids import child_id, looks_unique
from gateway.values import Value

Known = Mapping[bytes, Sequence[PrefixHashRef]]  # prefix hash -> its requests, newest first


class MatchKind(StrEnum):
    """Relation of a request to its conversation. RETRY: the latest request once more, because its
    answer did not arrive; the state does not advance, and the stored decision applies again.
    COMPACTION: the client shortened or rewrote the history. SUMMARY: a part or an account of the
    history, to be summarised: recorded with its run, whose history stays. SIDE: not part of the
    history (title, summary, probe); changes no state."""

    RETRY = "retry"
    CONTINUE = "continue"
    FORK = "fork"  # a new conversation that shares the beginning of its parent's history
    COMPACTION = "compaction"
    SUMMARY = "summary"
    SIDE = "side"
    NEW = "new"  # opens a conversation; a branch stored under the same id is replaced


class ConversationMatch(Value):
    """Result of matching one request."""

    kind: MatchKind  # whether it continues, repeats, forks or opens a conversation
    conversation_id: str | None  # None for a new conversation without an id from the client
    parent: str | None = None  # the branch that a fork splits from; None for all but forks
    position: int = 0  # messages of the request that were known; a fork copies the state from there
    prefix_hash: bytes | None = None  # the stored hash that was found; None when none was
    ahead: int = 0  # assistant turns of the request after the messages that were known


def _matched(
    kind: MatchKind,
    conversation_id: str | None,
    found: Found | None = None,
    parent: str | None = None,
) -> ConversationMatch:
    return ConversationMatch(
        kind=kind,
        conversation_id=conversation_id,
        parent=parent,
        position=found.position if found else 0,
        prefix_hash=found.prefix_hash if found else None,
        ahead=found.ahead if found else 0,
    )


def _fork(
    request: Incoming, parent: str, branches: Branches, found: Found | None = None
) -> ConversationMatch:
    child = child_id(parent, request.hashes.state.digest, branches)
    return _matched(MatchKind.FORK, child, found, parent=parent)


def match(
    request: Incoming,
    known: Known,
    branches: Branches,
    *,
    conversation_id: str | None = None,
    weak: bool = False,
    exclusive: bool = False,
) -> ConversationMatch:
    """The relation of the request to the conversations it may belong to.

    `known`: what is stored under the request's `hashes.candidates`. With an id from the client,
    `conversation_id` is that conversation, and `branches` are it and its children; without one,
    `branches` are all that `known` names. `weak`: several conversations may share the id.
    `exclusive`: the id names exactly one conversation, also when several agents run in parallel.

    Tool results for the calls of a branch's latest reply belong to that branch, however the client
    has changed the history before them. Otherwise the longest known prefix decides, but a
    conversation that is exactly one reply behind the request wins over one that had a longer part
    of the history earlier, so that each of two runs with equal histories keeps its conversation.
    Where several conversations are known under one prefix, see `_rank`.

    The same history once more is a retry when the client marks it as one or sends the id of the
    conversation, or when its answer was not delivered whole. Otherwise it is a sample: a
    conversation of its own, or a fork from the one it repeats."""
    named = None
    if conversation_id is not None:
        named = Named(conversation_id, weak, exclusive)
    found = _find(request, known, branches)
    if request.compacts and (asked := _summarised(branches, found, named)) is not None:
        return asked
    with_tools = any(branch.has_tools for branch in branches.values())
    # With replies in its history a request for a title may be a chat about titles.
    if request.titles and (with_tools or not request.hashes.state.turns):
        owner = None
        if found:
            owner = found.branch.conversation_id
        return _matched(MatchKind.SIDE, conversation_id or owner)
    follows = found and found.current and not (found.whole and found.branch.has_tools)
    if named and not weak and with_tools and not request.has_tools and not follows:
        return _matched(MatchKind.SIDE, conversation_id)
    awaiting = _awaiting_results(request, branches, found, named=named is not None)
    if awaiting is not None and not (found and found.continues and found.branch is awaiting):
        return _matched(MatchKind.COMPACTION, awaiting.conversation_id)
    if found is None:
        if named is None:
            return _matched(MatchKind.NEW, None)
        return _unknown(request, branches, named)
    if found.whole:
        return _again(request, found, branches, named=named)
    if found.continues:
        return _matched(MatchKind.CONTINUE, found.branch.conversation_id, found)
    compaction = None
    if named is not None:
        compaction = _compaction(request, branches, named, found=found)
    return compaction or _fork(request, found.branch.conversation_id, branches, found=found)


def _awaiting_results(
    request: Incoming, branches: Branches, found: Found | None, *, named: bool
) -> Branch | None:
    """Returns the one branch whose latest reply made the calls that the request answers.
    Providers reuse call ids: a history that is known up to the latest reply has priority, and
    the request must contain the reply that made the calls. Short ids occur in replies to several
    agents: they count only together with an id from the client (`named`), for the branch of the
    known history."""
    if found and found.whole and found.current and found.branch.served_calls == request.calls:
        return None  # the branch's latest request again
    if found and not found.whole and found.ahead == 0:
        return None  # the history already shows which reply the request follows
    if found and found.continues and found.branch.awaits_results_of(request):
        return None  # history and ids agree, even if the client has rewritten the reply
    candidates = list(branches.values())
    if not looks_unique(request.calls):
        if found is not None:
            candidates = [found.branch]
        if not named or len(candidates) > 1:
            return None
    waiting = [
        branch
        for branch in candidates
        if branch.awaits_results_of(request) and branch.reply_digest in request.hashes.messages
    ]
    if len(waiting) == 1:
        return waiting[0]
    return None


def _summarised(
    branches: Branches, found: Found | None, named: Named | None
) -> ConversationMatch | None:
    """The match of a request for a summary, whatever its tools; None if nothing is known of it."""
    if found is not None and found.current:
        if found.whole:
            kind = MatchKind.RETRY
        else:
            kind = MatchKind.CONTINUE
        return _matched(kind, found.branch.conversation_id, found)
    owner = None
    if found is not None:
        owner = found.branch.conversation_id
    if named is not None and not named.weak and named.conversation_id in branches:
        owner = named.conversation_id
    if owner is not None:
        return _matched(MatchKind.SUMMARY, owner, found)
    return None


def _find(request: Incoming, known: Known, branches: Branches) -> Found | None:
    """The stored prefix hash that decides, or None."""
    best = None
    echoed = False
    for position, prefix_hash in request.hashes.candidates:
        if prefix_hash not in known:
            continue
        if best is not None and request.hashes.turns_after(position) > 1:
            break
        refs = [ref for ref in known[prefix_hash] if ref.conversation_id in branches]
        if not refs:
            continue
        entries = [
            _assess(request, ref, branches[ref.conversation_id], position=position) for ref in refs
        ]
        here = entries[0]
        if len(entries) > 1:
            here = max(entries, key=lambda entry: _rank(request, entry))
        best = best or here
        again = best.whole and best.current
        if again and request.client_retry and best.branch.is_retried_by(request):
            return best
        # When the reply in the request is known, the request does not belong to a branch that
        # shares only the request before it and got another reply.
        adjacent = here.adjacent and not (echoed and here.ref.served == prefix_hash)
        if adjacent and not (again and _is_nearer(request, best.branch, here.branch)):
            return here
        echoed = echoed or any(ref.served != prefix_hash for ref in refs)
    return best


def _is_nearer(request: Incoming, again: Branch, behind: Branch) -> bool:
    """Whether a request repeats the branch `again` rather than being the next one of `behind`."""
    repeats = bool(request.calls) and again.served_calls == request.calls
    retries = again.may_be_retried and repeats and not behind.awaits_results_of(request)
    return again is behind or retries


def _assess(request: Incoming, ref: PrefixHashRef, branch: Branch, position: int) -> Found:
    ahead = request.hashes.turns_after(position)
    before = position - request.hashes.start
    prefix_hash = request.hashes.digests[before]
    is_reply = ref.served != prefix_hash
    whole = not is_reply and position == request.hashes.state.count
    # A request that extends one still in progress, without a reply to it, runs in parallel to it.
    parallel = branch.awaits is Awaits.MODEL and not is_reply and not whole and ahead == 0
    # Another gateway has served it since: what is known here of the branch is on the same way.
    own = ref.conversation_id == branch.conversation_id and not whole
    lags = own and branch.served_hash in request.hashes.digests[:before]
    current = (branch.is_extended_by(ref) or lags) and not parallel
    adjacent = current and not whole and ahead <= (0 if is_reply else 1)
    return Found(
        position,
        prefix_hash,
        ref,
        branch=branch,
        whole=whole,
        current=current,
        adjacent=adjacent,
        ahead=ahead,
    )


def _rank(request: Incoming, found: Found) -> tuple[int, ...]:
    branch = found.branch
    return (
        found.current,
        branch.awaits_results_of(request),
        found.whole,
        branch.model == request.model,
        branch.signature == request.signature,
        branch.has_tools == request.has_tools,
        branch.system == request.system,
        found.whole and branch.delivery is not Arrival.DONE,
        found.whole and branch.may_be_retried,
        -branch.retries if found.whole else 0,
    )


def _again(
    request: Incoming, found: Found, branches: Branches, named: Named | None
) -> ConversationMatch:
    """The match of a request that was served before as a whole."""
    branch = found.branch
    first = request.hashes.state.turns == 0
    if found.current and first and request.has_tools != branch.has_tools:
        # A title request with the first messages alone has the prefix hash of the real first
        # request.
        if named is None:
            return _matched(MatchKind.NEW, None)
        return _matched(MatchKind.NEW, branch.conversation_id, parent=branch.parent)
    exclusive = named is not None and named.exclusive
    retried = found.current and (
        exclusive or branch.is_retried_by(request, named=named is not None and not named.weak)
    )
    if retried or (request.client_retry and branch.has_model_of(request)):
        return _matched(MatchKind.RETRY, branch.conversation_id, found)
    compaction = None
    if first or exclusive:
        if named is None:
            return _matched(MatchKind.NEW, None)
        if not found.current:
            compaction = _compaction(request, branches, named, found=found)
    return compaction or _fork(request, branch.conversation_id, branches, found=found)


def _unknown(request: Incoming, branches: Branches, named: Named) -> ConversationMatch:
    """The match of a request with an id from the client and no known prefix hash."""
    conversation_id = named.conversation_id
    weak = named.weak
    branch = branches.get(conversation_id)
    whole = request.hashes.state.digest
    if branch and not weak and branch.served_hash == whole == request.hashes.state.root:
        # A system prompt alone, for the agent to speak first, has no prefix hash to find it by.
        return ConversationMatch(
            kind=MatchKind.RETRY, conversation_id=conversation_id, prefix_hash=whole
        )
    if compaction := _compaction(request, branches, named, found=None):
        return compaction
    begins = request.has_tools and branch and not (branch.has_tools or branch.steps or weak)
    if branch is None or not branch.signature or begins:
        # The branch is a title request that came first: the conversation itself takes over the id.
        return _matched(MatchKind.NEW, conversation_id)
    return _fork(request, conversation_id, branches)


def _compaction(
    request: Incoming, branches: Branches, named: Named, found: Found | None
) -> ConversationMatch | None:
    """The match of a request whose client has rewritten the history; None for any other."""
    branch = rewritten(request, branches, named, found=found)
    if branch is None:
        return None
    return _matched(MatchKind.COMPACTION, branch.conversation_id, found)
