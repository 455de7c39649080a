"""Finding the conversation of a request, and applying the request to its history."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from gateway.conversations.apply_request import apply_request
from gateway.conversations.conversation import Conversation
from gateway.conversations.incoming import (
    off_the_loop,
    read_incoming,
    read_whole,
    resumed_chain,
)
from gateway.conversations.index import ConversationIndex
from gateway.conversations.loading import ConversationLoader
from gateway.conversations.opening import task_digest
from gateway.conversations.search import Search
from gateway.conversations.settled import apart, is_settled
from gateway.conversations.stored_responses import StoredResponse
from gateway.dialects import SteeredRequest
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

_UNKNOWN = (MatchKind.NEW, MatchKind.FORK)
_RELOADS = 4
"""Most conversations loaded again for one request, when several begin like it."""


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
        search = await self._read(request, headers, tenant)
        verdict = await self._find(search)
        found = apply_request(self._index, verdict, search, now)
        resolved_id = found.id if found is not None else verdict.conversation_id
        return Resolved(
            label=identity_label(search.identity.source, verdict.kind),
            source=search.identity.source,
            match=verdict,
            incoming=search.incoming,
            conversation=found,
            conversation_id=resolved_id or "",
            unread=search.unread,
        )

    async def _read(
        self, request: SteeredRequest, headers: Mapping[str, str], tenant: str
    ) -> Search:
        """Read what the request says of its conversation, and its history."""
        identity = identify(headers, request.body, self._settings)
        if references := request.references:
            request.named = await self._loader.items(tenant, references)
        await self._load_parent(tenant, identity)
        owner, response = await self._continued_response(request, identity, tenant)
        if response is not None:
            request.earlier = response.earlier()
            identity = _with_response(identity, request.body)
        known = self._same_bytes(request, identity, tenant) if response is None else None
        checked = known.id if known is not None else None
        if self._shared and checked and not await self._is_current(tenant, checked):
            known = self._same_bytes(request, identity, tenant)
        history = known.history if known is not None else None
        root, tail = (history.root, history.tail) if history is not None else (b"", None)
        chain = resumed_chain(history)
        read = partial(read_incoming, request, headers, tenant, chain)
        value = identity.value
        return Search(
            request=request,
            headers=headers,
            tenant=tenant,
            identity=identity,
            given=conversation_id(tenant, value) if value is not None else None,
            response=response,
            response_of=owner,
            checked=checked,
            root=root,
            tail=tail,
            incoming=await off_the_loop(request, read, chain, tail or b""),
        )

    async def _find(self, search: Search) -> ConversationMatch:
        """The match from memory, or from the store where that may know more."""
        verdict, settled = self._match(search)
        if settled and self._shared and _of(verdict) != search.checked:
            settled = await self._is_current(search.tenant, _of(verdict))
            verdict, still = self._match(search)
            settled = settled and still
        if not settled:
            verdict = await self._find_stored(search)
        is_new = verdict.kind is MatchKind.NEW
        if is_new and search.identity.value is None and search.response is None:
            verdict = await self._find_rebuilt(search, verdict)
        if verdict.kind in _UNKNOWN:
            verdict = await self._find_window(search, verdict)
        here = self._index.get(verdict.conversation_id or "") is not None
        if search.unread and verdict.kind is MatchKind.NEW and not here:
            verdict = apart(verdict, search.tenant, search.given, search.incoming)
        return verdict

    async def _find_stored(self, search: Search) -> ConversationMatch:
        """The match after the store was asked."""
        if search.incoming.hashes.start and search.response is None:
            # The store is queried with the prefix hashes of the whole history.
            whole = partial(read_whole, search.headers, search.request, search.tenant)
            search.incoming = await off_the_loop(search.request, whole, None)
        try:
            await self._load(search)
        except StoreError as exc:
            search.unread = exc.label
        return await self._match_current(search)

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

    def _match(self, search: Search) -> tuple[ConversationMatch, bool]:
        """The match from memory, and whether the store could not change it.

        The store may know more when another gateway, or this one before its last start, served
        requests of the same history.
        """
        identity, incoming = search.identity, search.incoming
        if identity.source == FINGERPRINT and not self._settings.fingerprint:
            return match(incoming, {}, {}), True
        known, branches = self._index.known_prefix_hashes(incoming.hashes.candidates)
        if identity.value is not None:
            branches = self._index.branches_of(search.tenant, identity.value)
        elif incoming.calls:
            branches |= self._index.awaiting_results(search.tenant, incoming)
        verdict = match(
            incoming,
            known,
            branches,
            conversation_id=search.given,
            weak=identity.weak,
            exclusive=identity.exclusive,
        )
        return verdict, is_settled(verdict, incoming, known, branches, shared=self._shared)

    async def _match_current(self, search: Search) -> ConversationMatch:
        """The match from memory; what another gateway has continued since is loaded first."""
        verdict, _ = self._match(search)
        for _ in range(_RELOADS if self._shared else 0):
            current = await self._is_current(search.tenant, _of(verdict))
            verdict, _ = self._match(search)
            if current:
                break
        return verdict

    async def _is_current(self, tenant: str, name: str | None) -> bool:
        """Whether memory has the conversation as it is stored, as far as can be read."""
        try:
            return await self._loader.is_current(tenant, name)
        except StoreError:
            return True

    async def _load(self, search: Search) -> None:
        tenant, identity, incoming = search.tenant, search.identity, search.incoming
        if identity.value is not None:
            await self._loader.load_key(tenant, identity.value)
            if not self._index.branches_of(tenant, identity.value):
                return
        elif incoming.calls and looks_unique(incoming.calls):
            await self._loader.load_awaiting_results(tenant, incoming.calls)
        await self._loader.load_prefix_hashes(tenant, incoming)

    async def _find_rebuilt(self, search: Search, verdict: ConversationMatch) -> ConversationMatch:
        """The match of an unknown history, which may be known from its first reply on."""
        tenant, incoming = search.tenant, search.incoming
        end = end_of_reply(incoming.messages)
        if end is None or incoming.hashes.start or not self._settings.fingerprint:
            return verdict
        tail = extend_tail(b"", incoming.hashes, last=end)
        with suppress(StoreError):
            await self._loader.load_tail(tenant, tail)
        verdict, _ = self._match(search)
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

    async def _find_window(self, search: Search, verdict: ConversationMatch) -> ConversationMatch:
        """The match of a history that has lost its beginning, or a part of its middle."""
        incoming, tenant = search.incoming, search.tenant
        hashes, named = incoming.hashes, search.identity.value is not None
        if named or search.response is not None or not self._settings.fingerprint:
            return verdict
        again = verdict.position == hashes.state.count
        if hashes.start or not (again or hashes.turns_after(verdict.position)):
            return verdict  # the prefix that is known shows which reply the request follows
        alike = self._index.known_under(verdict.prefix_hash)
        # What another conversation has been asked may be what this one asks next; one that loops,
        # and whose client drops messages, asks the same again.
        asked = self._index.get(verdict.parent or "") if again else None
        other = asked.id if asked is not None and asked.run.start is None else None

        def newest() -> str | None:
            found = self._index.windows(tenant, incoming, alike)
            return next((name for name in found if name != other), None)

        chosen = None if self._shared else newest()
        if chosen is None:
            with suppress(StoreError):
                await self._loader.load_newest(tenant, hashes)
            chosen = newest()
        if chosen is None:
            return verdict
        return ConversationMatch(kind=MatchKind.COMPACTION, conversation_id=chosen)

    async def _load_parent(self, tenant: str, identity: Identity) -> None:
        """Load the conversation that started this one, for the first request of this one."""
        known = identity.value is not None and self._index.branches_of(tenant, identity.value)
        if identity.parent is None or known:
            return
        if not self._index.branches_of(tenant, identity.parent):
            with suppress(StoreError):
                await self._loader.load_key(tenant, identity.parent)


def _with_response(identity: Identity, body: Mapping[str, object]) -> Identity:
    """The identity of a request that names the answer it continues from.

    It is that answer, unless the client sent an id that only this conversation uses.
    """
    if identity.value is None or identity.weak:
        field = "previous_response_id" if body.get("previous_response_id") else "conversation"
        return Identity(source=f"body:{field}")
    return identity


def _of(verdict: ConversationMatch) -> str | None:
    """The stored conversation that a match continues."""
    return verdict.parent or verdict.conversation_id
