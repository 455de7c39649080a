"""What a request does to the conversations known so far."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gateway.steering.identity.branch import Awaits, Branch, HeadRef, Incoming
from gateway.steering.identity.ids import child_id, is_random
from gateway.steering.identity.sources import FINGERPRINT

Known = Mapping[bytes, Sequence[HeadRef]]
"""Stored heads, those of each digest most recent first."""
Branches = Mapping[str, Branch]
"""Branches by conversation id, most recently used first."""


class MatchKind(enum.StrEnum):
    """What a request is to its conversation."""

    RETRY = "retry"
    """Served before: nothing advances, the stored decision applies again."""
    CONTINUE = "continue"
    FORK = "fork"
    """A conversation of its own, under a parent."""
    COMPACTION = "compaction"
    """The same conversation with a history that the client made shorter or wrote anew."""
    SIDE = "side"
    """Beside the conversation (title, summary, probe): touches no state."""
    NEW = "new"
    """Opens a conversation; a branch stored under the same id is replaced."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """The verdict on one request.

    `conversation_id`: None for a new conversation without an id of its own. `parent`: the branch a
    fork leaves, or belongs to. `position`: how many of the request's messages were known (0: none);
    a fork with a position copies the parent's state as it was there. `head`: the stored head found.
    """

    kind: MatchKind
    conversation_id: str | None
    parent: str | None = None
    position: int = 0
    head: bytes | None = None


@dataclass(frozen=True, slots=True)
class _Named:
    """The id that the client sent; `weak` and `own` as `match` has them."""

    conversation_id: str
    weak: bool
    own: bool


@dataclass(frozen=True, slots=True)
class _Found:
    position: int
    head: bytes
    ref: HeadRef
    branch: Branch
    whole: bool
    """The head is that of the whole request, served before as it is."""
    current: bool
    """What extends the head continues its branch."""
    adjacent: bool
    """The request is exactly one reply ahead of the branch."""

    @property
    def goes_on(self) -> bool:
        return self.current and not self.whole

    def match(self, kind: MatchKind) -> Match:
        conversation = self.branch.conversation_id
        return Match(
            kind=kind, conversation_id=conversation, position=self.position, head=self.head
        )

    def fork(self, request: Incoming, branches: Branches) -> Match:
        parent = self.branch.conversation_id
        return Match(
            kind=MatchKind.FORK,
            conversation_id=child_id(parent, request.heads.full, branches),
            parent=parent,
            position=self.position,
            head=self.head,
        )


def match(
    request: Incoming,
    known: Known,
    branches: Branches,
    *,
    conversation_id: str | None = None,
    weak: bool = False,
    own: bool = False,
) -> Match:
    """What the request does to the conversations it may belong to.

    The results of the calls that a branch's latest reply made belong to that branch, whatever the
    client has made of the history before them: it keeps the newest messages only, clears old
    results, or lets its first message grow.

    `known` holds what is stored under the request's `heads.candidates()`. With an id from the
    client, `conversation_id` is that conversation and `branches` are it and its children; without,
    `branches` are all that `known` names. `weak`: the id may be shared by several conversations;
    `own`: by none, so that even agents at work beside each other do not share it.

    The longest head decides, save that a conversation which stands exactly one reply behind the
    request goes before another that once had a longer part of it: of two runs that went the same
    way, each keeps its own conversation. Requests with the same opening and no other sign are taken
    for one until their replies differ.
    """
    named = _Named(conversation_id, weak, own) if conversation_id is not None else None
    found = _find(request, known, branches)
    if named is not None and not weak and _is_side(request, found, branches):
        return Match(kind=MatchKind.SIDE, conversation_id=conversation_id)
    owing = _owing(request, branches, found, named=named is not None)
    if owing is not None and not (found and found.goes_on and found.branch is owing):
        return Match(kind=MatchKind.COMPACTION, conversation_id=owing.conversation_id)
    if found is None:
        if named is None:
            return Match(kind=MatchKind.NEW, conversation_id=None)
        return _unknown(request, branches, named)
    if found.whole:
        return _again(request, found, branches, named)
    if found.goes_on:
        return found.match(MatchKind.CONTINUE)
    if named is not None:
        rewritten = _rewritten(request, branches, named, found)
        if rewritten is not None:
            return rewritten
    return found.fork(request, branches)


def _find(request: Incoming, known: Known, branches: Branches) -> _Found | None:
    """The stored head that decides, or None."""
    best: _Found | None = None
    echoed = False
    for position, head in request.heads.candidates():
        ahead = request.heads.turns_after(position)
        if best is not None and ahead > 1:
            break
        refs = [ref for ref in known.get(head, ()) if ref.conversation_id in branches]
        if not refs:
            continue
        entries = [_judge(request, ref, branches[ref.conversation_id], position) for ref in refs]
        here = max(entries, key=lambda entry: _rank(request, entry))
        best = best or here
        again = best.whole and best.current
        if again and request.client_retry:
            return best
        # A reply that is known as it stands was not rewritten: a branch that got another one and
        # only shares the request before it is not meant.
        adjacent = here.adjacent and not (echoed and here.ref.served == head)
        if adjacent and not (again and here.branch is best.branch):
            return here
        echoed = echoed or any(ref.served != head for ref in refs)
    return best


def _judge(request: Incoming, ref: HeadRef, branch: Branch, position: int) -> _Found:
    ahead = request.heads.turns_after(position)
    head = request.heads.digests[position - request.heads.start]
    is_reply = ref.served != head
    whole = not is_reply and position == request.heads.state.count
    # What extends a request that is still on its way, without a reply to it, goes beside it.
    beside = branch.awaits is Awaits.MODEL and not is_reply and not whole and ahead == 0
    current = branch.holds(ref) and not beside
    adjacent = current and not whole and ahead <= (0 if is_reply else 1)
    return _Found(position, head, ref, branch, whole, current, adjacent)


def _rank(request: Incoming, found: _Found) -> tuple[bool, ...]:
    branch = found.branch
    return (
        found.current,
        branch.owed(request),
        found.whole,
        branch.signature == request.signature,
        branch.has_tools == request.has_tools,
    )


def _owing(
    request: Incoming, branches: Branches, found: _Found | None, *, named: bool
) -> Branch | None:
    """The one branch whose latest reply made the calls that the request answers.

    Ids that are not as good as random are the same in several agents' replies: they say something
    only under an id from the client (`named`), and only of the branch that the history leads to.
    """
    if found and found.whole and found.current and found.branch.served_calls == request.calls:
        return None  # the request of that branch once more
    near = list(branches.values())
    if not is_random(request.calls):
        if found is not None:
            near = [found.branch]
        if not named or len(near) > 1:
            return None
    owing = [branch for branch in near if branch.owed(request)]
    return owing[0] if len(owing) == 1 else None


def _is_side(request: Incoming, found: _Found | None, branches: Branches) -> bool:
    """No tools while the conversation has some, and not the next request of one of its branches."""
    if request.has_tools or not any(branch.has_tools for branch in branches.values()):
        return False
    if found is None or not found.current:
        return True
    return found.whole and found.branch.has_tools


def _again(request: Incoming, found: _Found, branches: Branches, named: _Named | None) -> Match:
    """The whole request was served before."""
    first = request.heads.state.turns == 0
    if found.current and first and request.has_tools != found.branch.has_tools:
        # A title asked from the opening alone has the head of the real first request.
        if named is None:
            return Match(kind=MatchKind.NEW, conversation_id=None)
        branch = found.branch
        return Match(
            kind=MatchKind.NEW, conversation_id=branch.conversation_id, parent=branch.parent
        )
    if found.current or request.client_retry:
        return found.match(MatchKind.RETRY)
    if not (first or (named is not None and named.own)):
        return found.fork(request, branches)
    if named is None:
        return Match(kind=MatchKind.NEW, conversation_id=None)
    rewritten = _rewritten(request, branches, named, found)
    return rewritten or found.fork(request, branches)


def _unknown(request: Incoming, branches: Branches, named: _Named) -> Match:
    """An id from the client, and no stored head in the history."""
    conversation_id, weak = named.conversation_id, named.weak
    branch, head = branches.get(conversation_id), request.heads.full
    if branch is not None and not weak and branch.served_head == head == request.heads.state.root:
        # The prompt alone, for the agent to speak first, has no head to be found by.
        return Match(kind=MatchKind.RETRY, conversation_id=conversation_id, head=head)
    rewritten = _rewritten(request, branches, named, None)
    if rewritten is not None:
        return rewritten
    if branch is None or (request.has_tools and not (branch.has_tools or branch.steps or weak)):
        # A title request that came before the conversation it belongs to leaves it the id.
        return Match(kind=MatchKind.NEW, conversation_id=conversation_id)
    child = child_id(conversation_id, request.heads.full, branches)
    return Match(kind=MatchKind.FORK, conversation_id=child, parent=conversation_id)


def _rewritten(
    request: Incoming, branches: Branches, named: _Named, found: _Found | None
) -> Match | None:
    """The compaction that the request may be: an id from the client, but another history.

    Proof is the latest reply of a branch in the part that is not known, or its lines there in the
    client's own words: the agent had it made as a summary. Without proof it takes the
    same signature and a branch that has no call on its way, and
    * a history with assistant turns: a branch with scored steps, at best the id's own;
    * a history without (a summary, a new list of tasks): the id's own branch, when it owes no tool
      results. One that does is at work, so the request is a second agent beside it, unless the id
      is the conversation's `own`, it has scored steps, and this is another opening than its first.
    """
    position = found.position if found else 0
    fresh = request.heads.messages[max(position - request.heads.start, 0) :]
    alike = [
        branch
        for branch in branches.values()
        if branch.signature == request.signature and branch.awaits is not Awaits.MODEL
    ]
    alike.sort(key=lambda branch: branch.conversation_id != named.conversation_id)
    chosen = next((b for b in alike if b.reply_digest and b.reply_digest in fresh), None)
    chosen = chosen or _summarised(request, branches, position)
    if chosen is None and not named.weak:
        known = found is not None and found.whole
        if request.heads.state.turns == 0:
            idle = [b for b in alike[:1] if b.conversation_id == named.conversation_id]
            busy = named.own and not known
            chosen = next(
                (b for b in idle if b.awaits is Awaits.ANYTHING or (busy and b.steps)), None
            )
        elif found is None or (named.own and known):
            chosen = next((b for b in alike if b.steps), None)
    if chosen is None:
        return None
    return Match(
        kind=MatchKind.COMPACTION,
        conversation_id=chosen.conversation_id,
        position=position,
        head=found.head if found else None,
    )


def _summarised(request: Incoming, branches: Branches, position: int) -> Branch | None:
    """The branch whose latest reply the new part of the history was made from.

    What asked for the summary may have been another prompt with other tools, so that the signature
    says nothing.
    """
    idle = (branch for branch in branches.values() if branch.awaits is Awaits.ANYTHING)
    return next((branch for branch in idle if request.retells(branch, position)), None)


def identity_label(source: str, kind: MatchKind) -> str:
    """Where the id came from, for people: `retry`, `fork`, `compaction`, else the id's source.

    Without an id from the client ("fingerprint") that is `prefix` or `new`.
    """
    if kind in (MatchKind.RETRY, MatchKind.FORK, MatchKind.COMPACTION):
        return kind.value
    if source != FINGERPRINT:
        return source
    return "prefix" if kind is MatchKind.CONTINUE else "new"
