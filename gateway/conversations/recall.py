"""From a request to its conversation: the match, and the memo it goes on from."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from gateway.conversations.answered import Answered
from gateway.conversations.compaction import compact
from gateway.conversations.heard import Heard
from gateway.conversations.index import ConversationIndex
from gateway.conversations.memo import Conversation
from gateway.dialects import SteeredRequest
from gateway.steering.conversation import (
    FINGERPRINT,
    Branch,
    ConversationSettings,
    HeadRef,
    Identity,
    Incoming,
    Match,
    MatchKind,
    conversation_id,
    identify,
    identity_label,
    is_random,
    match,
    read_request,
)
from gateway.steering.etrace.state import GuidanceState
from gateway.steering.fold import Carried
from gateway.wire.heads import ChainState

_GOES_ON = (MatchKind.CONTINUE, MatchKind.FORK, MatchKind.RETRY)
_Known = Mapping[bytes, Sequence[HeadRef]]


@dataclass(slots=True)
class Recalled:
    """A request with its conversation; `conversation` is None for a side request."""

    label: str
    """For `x-gateway-identity`."""

    source: str
    kind: MatchKind
    incoming: Incoming
    conversation: Conversation | None
    conversation_id: str


class Recall:
    """Identifies requests; what it changes is in memory only, the store follows at the commit."""

    def __init__(self, index: ConversationIndex, settings: ConversationSettings) -> None:
        self._index = index
        self._settings = settings

    async def __call__(
        self, request: SteeredRequest, headers: Mapping[str, str], tenant: str, now: float
    ) -> Recalled:
        """The conversation of one request, which from now on is its latest request."""
        identity = identify(headers, request.body, self._settings)
        if references := request.references:
            request.named = await self._index.items(tenant, references)
        owner, answer = await self._answer(request, identity, tenant)
        if answer is not None:
            request.earlier = answer.earlier()
            identity = _named(identity, request.body)
        hit = self._index.holder(tenant, request.known) if answer is None else None
        if hit is not None and identity.value is not None and hit.external_key != identity.value:
            hit = None
        root = hit.root if hit is not None else b""
        incoming = self._read(request, headers, tenant, hit)
        given = conversation_id(tenant, identity.value) if identity.value is not None else None
        verdict, settled = self._match(tenant, identity, given, incoming)
        if not settled:
            if incoming.heads.start and answer is None:
                # The store is asked by the whole history, from its first message on.
                incoming = _read_whole(headers, request, tenant)
            await self._load(tenant, identity, given, incoming)
            verdict, _ = self._match(tenant, identity, given, incoming)
        found = self._apply(verdict, identity, given, incoming, tenant, now)
        if found is not None:
            if answer is not None and found.fold is None and verdict.kind in _GOES_ON:
                found.base, found.base_offset = answer.carried, request.earlier_count
                found.base_of = owner
            self._remember(found, root, request, incoming)
        named = found.id if found is not None else verdict.conversation_id
        return Recalled(
            label=identity_label(identity.source, verdict.kind),
            source=identity.source,
            kind=verdict.kind,
            incoming=incoming,
            conversation=found,
            conversation_id=named or "",
        )

    async def _answer(
        self, request: SteeredRequest, identity: Identity, tenant: str
    ) -> tuple[str, Answered | None]:
        """The answer a request goes on from, where it leaves the history before to the server, and
        whose it is."""
        named = request.goes_on_from
        if named is not None:
            return await self._index.answer(tenant, named)
        if request.in_conversation and identity.value is not None:
            return await self._index.newest_answer(tenant, identity.value)
        return "", None

    def _read(
        self,
        request: SteeredRequest,
        headers: Mapping[str, str],
        tenant: str,
        hit: Conversation | None,
    ) -> Incoming:
        if request.earlier is not None:
            chain, transcript = request.earlier.chain, request.transcript
            return read_request(headers, request.body, tenant, resume=chain, messages=transcript)
        if hit is None or hit.prefix is None or hit.chain is None:
            return _read_whole(headers, request, tenant)
        resume = hit.chain if hit.chain.count == hit.prefix.count else None
        incoming = _read_whole(headers, request, tenant, resume)
        if resume is not None and incoming.heads.state.count == resume.count:
            # The same request again: a retry, or another run that stands where that one once stood,
            # which only the whole history tells.
            return _read_whole(headers, request, tenant)
        return incoming

    def _match(
        self, tenant: str, identity: Identity, given: str | None, incoming: Incoming
    ) -> tuple[Match, bool]:
        """The verdict by what memory knows, and whether the store could say nothing else.

        The store may know more when another gateway, or this one before its last start, served
        requests of the same history.
        """
        if identity.source == FINGERPRINT and not self._settings.fingerprint:
            return match(incoming, {}, {}), True
        known, branches = self._index.known_heads(incoming.heads.candidates())
        if identity.value is not None:
            branches = self._index.branches_of(tenant, identity.value)
        elif incoming.calls:
            branches |= self._index.owing(tenant, incoming)
        verdict = match(
            incoming, known, branches, conversation_id=given, weak=identity.weak, own=identity.own
        )
        return verdict, _is_settled(verdict, incoming, known, branches)

    async def _load(
        self, tenant: str, identity: Identity, given: str | None, incoming: Incoming
    ) -> None:
        if identity.value is not None:
            await self._index.load_key(tenant, identity.value)
            if not self._index.branches_of(tenant, identity.value):
                return
        elif incoming.calls and is_random(incoming.calls):
            await self._index.load_owing(tenant, incoming.calls)
        await self._index.load_heads(tenant, incoming)

    def _apply(
        self,
        verdict: Match,
        identity: Identity,
        given: str | None,
        incoming: Incoming,
        tenant: str,
        now: float,
    ) -> Conversation | None:
        if verdict.kind is MatchKind.SIDE:
            return None
        current = self._index.get(verdict.conversation_id) if verdict.conversation_id else None
        if verdict.kind is MatchKind.RETRY and current is not None:
            current.retries += 1
            return current
        if verdict.kind is MatchKind.CONTINUE and current is not None:
            _check_memo(current, incoming)
            current.branch = current.branch.extended(incoming)
            current.retries = 0
            return current
        if verdict.kind is MatchKind.COMPACTION and current is not None:
            compact(current, incoming)
            current.chain = None
            current.branch = current.branch.extended(incoming)
            current.retries = 0
            return current
        return self._open(verdict, identity, given, incoming, tenant, now)

    def _open(
        self,
        verdict: Match,
        identity: Identity,
        given: str | None,
        incoming: Incoming,
        tenant: str,
        now: float,
    ) -> Conversation:
        """A conversation that begins with this request: new, or forked off another."""
        name = verdict.conversation_id or given
        if name is None:
            name = conversation_id(tenant, incoming.heads.full.hex(), secrets.token_hex(8))
        replaced = self._index.get(name)
        parent = self._index.get(verdict.parent) if verdict.parent else None
        opened = Conversation(
            branch=incoming.opens(name, verdict.parent),
            tenant=tenant,
            source=identity.source,
            external_key=identity.value,
            created_at=now,
            run_started_at=now,
        )
        if replaced is not None:
            # Its runs keep their ids, so the new ones count on from them.
            opened.version = replaced.version
            opened.base = Carried(run=replaced.run + 1)
            opened.run = replaced.run + 1
        elif parent is not None and verdict.position:
            opened.guidance = _guidance_at(parent.guidance, verdict.position)
            opened.run = parent.run
            opened.judged = dict(parent.judged)
            opened.heard = Heard(parent.heard.lasting())
        self._index.add(opened)
        return opened

    def _remember(
        self,
        found: Conversation,
        root: bytes,
        request: SteeredRequest,
        incoming: Incoming,
    ) -> None:
        """Keep the bytes and the chain of this request, for the next one to go on from."""
        self._index.drop_prefix(found)
        heads = incoming.heads
        read = found.chain.count if found.chain is not None and heads.start else 0
        found.heard.add(heads.messages[max(read - heads.start, 0) :])
        found.prefix = None if request.earlier is not None else request.prefix
        found.chain = incoming.heads.state
        if not found.root:
            candidates = incoming.heads.candidates()
            shared = root if incoming.heads.start else b""
            parent = self._index.get(found.branch.parent) if found.branch.parent else None
            if parent is not None and request.earlier is not None:
                shared = parent.root
            found.root = shared or (candidates[-1][1] if candidates else incoming.heads.full)
        self._index.keep_prefix(found)
        self._index.used(found)
        self._index.add_head(found, incoming.heads.full, incoming.heads.full)


def _read_whole(
    headers: Mapping[str, str],
    request: SteeredRequest,
    tenant: str,
    resume: ChainState | None = None,
) -> Incoming:
    """A request that brings its history itself, be it by reference."""
    messages = request.transcript if request.named else None
    return read_request(headers, request.body, tenant, resume=resume, messages=messages)


def _named(identity: Identity, body: Mapping[str, object]) -> Identity:
    """How a request is identified that names the answer it goes on from: by that, if not better."""
    if identity.value is None or identity.weak:
        field = "previous_response_id" if body.get("previous_response_id") else "conversation"
        return Identity(source=f"body:{field}")
    return identity


def _is_settled(
    verdict: Match, incoming: Incoming, known: _Known, branches: Mapping[str, Branch]
) -> bool:
    match verdict.kind:
        case MatchKind.RETRY:
            # Calls with other ids than those it was served with may be a later turn of a loop.
            served = branches[str(verdict.conversation_id)].served_calls
            return not incoming.calls or served in ((), incoming.calls)
        case MatchKind.SIDE:
            return bool(branches)
        case MatchKind.COMPACTION:
            return branches[str(verdict.conversation_id)].owed(incoming)
        case MatchKind.CONTINUE:
            return _is_next(verdict, incoming, known)
        case MatchKind.NEW if verdict.conversation_id is None:
            # An opening that memory does not know is new: only a history can be recalled.
            return not (incoming.heads.state.turns or incoming.client_retry)
        case _:
            return False


def _is_next(verdict: Match, incoming: Incoming, known: _Known) -> bool:
    """Whether the request is exactly one reply ahead of what memory knows."""
    ahead = incoming.heads.turns_after(verdict.position)
    head = verdict.head
    if head is None or ahead > 1:
        return False
    refs = [r for r in known[head] if r.conversation_id == verdict.conversation_id]
    # A head that a reply has extended covers that reply already.
    return not ahead or any(ref.served == head for ref in refs)


def _check_memo(conversation: Conversation, incoming: Incoming) -> None:
    """Drop the fold when the messages it has read stand elsewhere in this request.

    A client may echo one reply as two messages, or add a system message: the same history, but no
    longer the same positions.
    """
    fold = conversation.fold
    if fold is None:
        return
    heads = incoming.heads
    at = fold.consumed - heads.start
    served = conversation.branch.served_head
    if not 0 <= at < len(heads.digests) or heads.digests[at] != served:
        conversation.fold = None


def _guidance_at(guidance: GuidanceState, position: int) -> GuidanceState:
    """What a fork copies: the blocks that stood before the point where it leaves its parent."""
    kept = tuple(
        item for item in guidance.injections if item.place == "system" or item.offset <= position
    )
    return replace(guidance, injections=kept, decided_step=None)
