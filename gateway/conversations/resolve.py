"""Finding the conversation of a request, and applying the request to its history."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from gateway.conversations.compaction import compact
from gateway.conversations.conversation import Conversation, RunStart, first_hash
from gateway.conversations.incoming import (
    off_the_loop,
    read_incoming,
    read_whole,
    resumed_chain,
)
from gateway.conversations.index import ConversationIndex
from gateway.conversations.loading import ConversationLoader
from gateway.conversations.opening import open_conversation, task_digest
from gateway.conversations.run_tags import tags_of
from gateway.conversations.settled import apart, is_settled
from gateway.conversations.stored_responses import StoredResponse
from gateway.dialects import SteeredRequest
from gateway.errors import BadRequest
from gateway.steering.experiments import MODES
from gateway.steering.identity import (
    FINGERPRINT,
    ConversationMatch,
    ConversationSettings,
    Identity,
    Incoming,
    MatchKind,
    conversation_id,
    identify,
    identity_label,
    looks_unique,
    match,
)
from gateway.steering.identity.rebuilt import end_of_reply, extend_tail, is_distinctive
from gateway.stores.protocols import StoreError

_OUTCOMES = ("success", "failure")
_RELOADS = 4
"""Most conversations loaded again for one request, when several begin like it."""
_CONTINUING = (MatchKind.CONTINUE, MatchKind.FORK, MatchKind.RETRY)


class ControlHeaders:
    """The request headers that control the gateway itself.

    Raises:
        BadRequest: a value that is not allowed; `param` names the header.
    """

    def __init__(self, headers: Mapping[str, str]) -> None:
        self.mode = _one_of(headers, "x-gateway-mode", MODES)
        self.outcome = _one_of(headers, "x-gateway-outcome", _OUTCOMES)
        self.unit = headers.get("x-gateway-experiment-unit")
        self.budget = headers.get("x-gateway-budget")
        self.tags = tags_of(headers)
        self.agent = headers.get("user-agent", "").split(" ")[0][:80]
        self.experiment: str | None = None
        self.arm: str | None = None


@dataclass(slots=True)
class Resolved:
    """A request with its conversation; `conversation` is None for a side request.

    `label`: for `x-gateway-identity`; `source`: where the id came from; `unread`: why the store
    could not be asked, empty when it was or need not be.
    """

    label: str
    source: str
    match: ConversationMatch
    incoming: Incoming
    conversation: Conversation | None
    conversation_id: str
    unread: str = ""

    @property
    def kind(self) -> MatchKind:
        """How the request relates to its conversation."""
        return self.match.kind


class ConversationResolver:
    """Finds the conversations of requests; changes memory only, the store follows at the commit.

    `shared`: other gateways use the same store.
    """

    def __init__(
        self,
        index: ConversationIndex,
        loader: ConversationLoader,
        settings: ConversationSettings,
        *,
        shared: bool = False,
    ) -> None:
        self._shared = shared
        self._index = index
        self._loader = loader
        self._settings = settings

    async def resolve(
        self, request: SteeredRequest, headers: Mapping[str, str], tenant: str, now: float
    ) -> Resolved:
        """The conversation of one request; the request becomes its latest one."""
        identity = identify(headers, request.body, self._settings)
        if references := request.references:
            request.named = await self._loader.items(tenant, references)
        await self._load_parent(tenant, identity)
        owner, response = await self._continued_response(request, identity, tenant)
        if response is not None:
            request.earlier = response.earlier()
            identity = _with_response(identity, request.body)
        known = self._same_bytes(request, identity, tenant) if response is None else None
        current = known.id if known is not None else None
        if self._shared and current and not await self._is_current(tenant, current):
            known = self._same_bytes(request, identity, tenant)
        shared = known.history if known is not None else None
        root, tail = (shared.root, shared.tail) if shared is not None else (b"", None)
        incoming = await off_the_loop(
            request, partial(read_incoming, request, headers, tenant, resumed_chain(shared))
        )
        given = conversation_id(tenant, identity.value) if identity.value is not None else None
        verdict, settled = self._match(tenant, identity, given, incoming)
        if settled and self._shared and _of(verdict) != current:
            settled = await self._is_current(tenant, _of(verdict))
            verdict, still = self._match(tenant, identity, given, incoming)
            settled = settled and still
        unread = ""
        if not settled:
            if incoming.hashes.start and response is None:
                # The store is queried with the prefix hashes of the whole history.
                whole = partial(read_whole, headers, request, tenant)
                incoming = await off_the_loop(request, whole)
            try:
                await self._load(tenant, identity, given, incoming)
            except StoreError as exc:
                unread = exc.label
            verdict = await self._match_current(tenant, identity, given, incoming)
        if verdict.kind is MatchKind.NEW and identity.value is None and response is None:
            verdict = await self._find_rebuilt(tenant, identity, incoming, verdict)
        here = self._index.get(verdict.conversation_id or "") is not None
        if unread and verdict.kind is MatchKind.NEW and not here:
            verdict = apart(verdict, tenant, given, incoming)
        found = self._apply(verdict, identity, given, incoming, tenant, now)
        if found is not None:
            if response is not None and found.run.fold is None and verdict.kind in _CONTINUING:
                found.run.start = RunStart(
                    snapshot=response.snapshot, offset=request.earlier_count, logged_in=owner
                )
            self._remember(found, root, tail, request, incoming)
        resolved_id = found.id if found is not None else verdict.conversation_id
        return Resolved(
            label=identity_label(identity.source, verdict.kind),
            source=identity.source,
            match=verdict,
            incoming=incoming,
            conversation=found,
            conversation_id=resolved_id or "",
            unread=unread,
        )

    def _same_bytes(
        self, request: SteeredRequest, identity: Identity, tenant: str
    ) -> Conversation | None:
        """The conversation whose latest request this one begins with, byte for byte."""
        found = self._index.conversation_for_prefix(tenant, request.known)
        if found is None or identity.value in (None, found.external_key):
            return found
        return None

    async def _continued_response(
        self, request: SteeredRequest, identity: Identity, tenant: str
    ) -> tuple[str, StoredResponse | None]:
        """The stored answer that a request continues from instead of sending its history, and the
        id of that answer's conversation."""
        named = request.previous_response_id
        if named is not None:
            return await self._loader.response(tenant, named)
        if request.in_conversation and identity.value is not None:
            return await self._loader.newest_response(tenant, identity.value)
        return "", None

    def _match(
        self, tenant: str, identity: Identity, given: str | None, incoming: Incoming
    ) -> tuple[ConversationMatch, bool]:
        """The match from memory, and whether the store could not change it.

        The store may know more when another gateway, or this one before its last start, served
        requests of the same history.
        """
        if identity.source == FINGERPRINT and not self._settings.fingerprint:
            return match(incoming, {}, {}), True
        known, branches = self._index.known_prefix_hashes(incoming.hashes.candidates())
        if identity.value is not None:
            branches = self._index.branches_of(tenant, identity.value)
        elif incoming.calls:
            branches |= self._index.awaiting_results(tenant, incoming)
        verdict = match(
            incoming,
            known,
            branches,
            conversation_id=given,
            weak=identity.weak,
            exclusive=identity.exclusive,
        )
        return verdict, is_settled(verdict, incoming, known, branches, shared=self._shared)

    async def _match_current(
        self, tenant: str, identity: Identity, given: str | None, incoming: Incoming
    ) -> ConversationMatch:
        """The match from memory; what another gateway has continued since is loaded first."""
        verdict, _ = self._match(tenant, identity, given, incoming)
        for _ in range(_RELOADS if self._shared else 0):
            current = await self._is_current(tenant, _of(verdict))
            verdict, _ = self._match(tenant, identity, given, incoming)
            if current:
                break
        return verdict

    async def _is_current(self, tenant: str, name: str | None) -> bool:
        """Whether memory has the conversation as it is stored, as far as can be read."""
        try:
            return await self._loader.is_current(tenant, name)
        except StoreError:
            return True

    async def _load(
        self, tenant: str, identity: Identity, given: str | None, incoming: Incoming
    ) -> None:
        if identity.value is not None:
            await self._loader.load_key(tenant, identity.value)
            if not self._index.branches_of(tenant, identity.value):
                return
        elif incoming.calls and looks_unique(incoming.calls):
            await self._loader.load_awaiting_results(tenant, incoming.calls)
        await self._loader.load_prefix_hashes(tenant, incoming)

    async def _find_rebuilt(
        self, tenant: str, identity: Identity, incoming: Incoming, verdict: ConversationMatch
    ) -> ConversationMatch:
        """The match of an unknown history, which may be known from its first reply on."""
        end = end_of_reply(incoming.messages)
        if end is None or incoming.hashes.start or not self._settings.fingerprint:
            return verdict
        tail = extend_tail(b"", incoming.hashes, last=end)
        with suppress(StoreError):
            await self._loader.load_tail(tenant, tail)
        verdict, _ = self._match(tenant, identity, None, incoming)
        if verdict.kind is not MatchKind.NEW:
            return verdict  # another request has opened it in the meantime
        strong = is_distinctive(incoming.hashes, incoming.messages, end)
        task = task_digest(incoming.messages)
        alike = [
            branch
            for branch in self._index.branches_with_tail(tenant, tail)
            if branch.signature == incoming.signature and (strong or branch.task == task)
        ]
        if len(alike) != 1:
            return verdict
        return ConversationMatch(
            kind=MatchKind.COMPACTION, conversation_id=alike[0].conversation_id
        )

    async def _load_parent(self, tenant: str, identity: Identity) -> None:
        """Load the conversation that started this one, for the first request of this one."""
        known = identity.value is not None and self._index.branches_of(tenant, identity.value)
        if identity.parent is None or known:
            return
        if not self._index.branches_of(tenant, identity.parent):
            with suppress(StoreError):
                await self._loader.load_key(tenant, identity.parent)

    def _apply(
        self,
        verdict: ConversationMatch,
        identity: Identity,
        given: str | None,
        incoming: Incoming,
        tenant: str,
        now: float,
    ) -> Conversation | None:
        if verdict.kind is MatchKind.SIDE:
            return None
        current = self._index.get(verdict.conversation_id) if verdict.conversation_id else None
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
        return open_conversation(self._index, verdict, identity, given, incoming, tenant, now)

    def _remember(
        self,
        found: Conversation,
        root: bytes,
        tail: bytes | None,
        request: SteeredRequest,
        incoming: Incoming,
    ) -> None:
        """Keep the bytes and the hash state of this request, for the next one to continue from."""
        self._index.drop_prefix(found)
        history, hashes = found.history, incoming.hashes
        read = history.chain.count if history.chain is not None and hashes.start else 0
        fresh = max(read - hashes.start, 0)
        history.seen.add(hashes.messages[fresh:])
        if not read:
            history.tail = tail if hashes.start else b""
        if history.tail is not None:
            history.tail = extend_tail(history.tail, hashes, fresh)
        history.prefix = None if request.earlier is not None else request.prefix
        history.chain = hashes.state
        if not history.root:
            history.root = self._root(found, root, request, incoming)
        self._index.keep_prefix(found)
        self._index.used(found)
        self._index.add_prefix_hash(found, hashes.full, hashes.full)

    def _root(
        self, found: Conversation, root: bytes, request: SteeredRequest, incoming: Incoming
    ) -> bytes:
        """The hash of the history's first message."""
        hashes = incoming.hashes
        shared = root if hashes.start else b""
        branch = found.history.branch
        parent = self._index.get(branch.parent) if branch.parent else None
        if parent is not None and request.earlier is not None:
            shared = parent.history.root
        return shared or first_hash(hashes)


def _one_of(headers: Mapping[str, str], name: str, allowed: tuple[str, ...]) -> str | None:
    value = headers.get(name)
    if value is None:
        return None
    if value not in allowed:
        raise BadRequest(f"{name} must be one of {', '.join(allowed)}", param=name)
    return value


def _with_response(identity: Identity, body: Mapping[str, object]) -> Identity:
    """The identity of a request that names the answer it continues from.

    It is that answer, unless the client sent an id that only this conversation uses.
    """
    if identity.value is None or identity.weak:
        field = "previous_response_id" if body.get("previous_response_id") else "conversation"
        return Identity(source=f"body:{field}")
    return identity


def _of(verdict: ConversationMatch) -> str | None:
    """The stored conversation that a match goes on from."""
    return verdict.parent or verdict.conversation_id


def _extend(conversation: Conversation, incoming: Incoming) -> None:
    history = conversation.history
    history.branch = history.branch.extended(incoming)


def _check_fold(conversation: Conversation, incoming: Incoming) -> None:
    """Drop the fold when the messages it has read are at other positions in this request.

    A client may echo one reply as two messages, or add a system message: the same history, but no
    longer the same positions.
    """
    fold = conversation.run.fold
    if fold is None:
        return
    hashes = incoming.hashes
    at = fold.consumed - hashes.start
    served = conversation.history.branch.served_hash
    if not 0 <= at < len(hashes.digests) or hashes.digests[at] != served:
        conversation.run.fold = None
