"""Finding the conversation of a request: is it known, and what does it continue?

A request whose messages are read is matched from memory, or from the store where that may know more
(`is_settled`); one whose messages are not read by the client's id, or by its bytes."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass
from functools import partial
from secrets import token_bytes

from msgspec.structs import replace

from gateway.conversations.apply_request import (
    Known,
    Search,
    apply_request,
    open_conversation,
    task_digest,
)
from gateway.conversations.conversation import Conversation
from gateway.conversations.in_memory import ConversationIndex
from gateway.conversations.known_prefixes import Growth, messages_of
from gateway.conversations.loading import ConversationLoader
from gateway.dialects import SteeredRequest
from gateway.steering.identity import (
    FINGERPRINT,
    Awaits,
    Branch,
    ConversationMatch,
    ConversationSettings,
    Identity,
    Incoming,
    MatchKind,
    PrefixHashRef,
    calls_hash,
    conversation_id,
    identify,
    is_client_retry,
    looks_unique,
    match,
    read_request,
)
from gateway.steering.identity.rebuilt import (
    end_of_reply,
    is_distinctive,
    latest_turn,
    newest_key,
    with_tails,
)
from gateway.stores.protocols import StoreError
from gateway.tasks import off_loop
from gateway.values import Texts, Value
from gateway.wire.body_prefix import BodyPrefix
from gateway.wire.prefix_hash import ChainState
from gateway.wire.request import BIG_BYTES

_EXTENDS = (MatchKind.NEW, MatchKind.CONTINUE)
_RELOADS = 4  # most conversations loaded again for one request, when several begin like it
_MANY_MESSAGES = 1000  # new messages whose digests are made in a thread: each takes some 10 us


class Resolved(Value):
    """The findings about the conversation of a request."""

    source: str  # where the id came from
    match: ConversationMatch  # how the request relates to its conversation
    incoming: Incoming  # what matching read
    unread: str = ""  # why the store could not be asked; "" when it was or need not be
    # whether other gateways may have decided about calls that neither this one nor what it could
    # read of the store knows
    lags: bool = False


@dataclass(eq=False)
class ConversationResolver:
    """Finds the conversations of requests. Changes memory only; the store follows at the commit."""

    index: ConversationIndex  # conversations in memory, by id and by prefix hash
    loader: ConversationLoader  # reads conversations from the store
    settings: ConversationSettings  # the section `conversations`
    _: KW_ONLY
    shared: bool = False  # other gateways use the same store, which may know more than memory

    async def resolve(
        self, request: SteeredRequest, headers: Texts, tenant: str, now: float
    ) -> tuple[Resolved, Conversation | None]:
        """The conversation of one request, which becomes its latest one; None for a side
        request."""
        search = await self._read(request, headers, tenant)
        verdict = await self._find(search)
        resolved = Resolved(
            source=search.identity.source,
            match=verdict,
            incoming=search.incoming,
            unread=search.unread,
            lags=verdict.kind in _EXTENDS and bool(self.shared or search.unread),
        )
        return resolved, apply_request(self.index, verdict, search, now=now)

    async def _read(self, request: SteeredRequest, headers: Texts, tenant: str) -> Search:
        """Read what the request says of its conversation, and its history."""
        identity = identify(headers, request.body, self.settings)
        references = request.dialect.references(request)
        named = {}
        if references:
            named = await self.loader.items(tenant, references)
        if identity.parent is not None:
            await self._load_parent(tenant, identity.parent, identity.value)
        # The stored answer that a request continues from instead of sending its history.
        owner = ""
        response = None
        if request.previous_response_id is not None:
            owner, response = await self.loader.response(tenant, request.previous_response_id)
        elif identity.value is not None and request.dialect.in_conversation(request):
            owner, response = await self.loader.newest_response(tenant, identity.value)
        if named or response is not None:
            request.complete(named, response.earlier() if response is not None else None)
        known = None
        checked = ""
        if response is not None:
            # That answer decides, unless the client sent an id that only this conversation uses.
            if identity.value is None or identity.weak:
                field = "conversation"
                if request.body.get("previous_response_id"):
                    field = "previous_response_id"
                identity = Identity(source=f"body:{field}")
        elif (prefix := request.known) is not None:
            known = self._same_bytes(prefix, identity, tenant)
            if known is not None:
                checked = known.id
                if self.shared and not await self._is_current(tenant, checked):
                    known = self._same_bytes(prefix, identity, tenant)
        root = b""
        tail = None
        chain = None  # of the latest request of the conversation, if that had all its messages
        if known is not None:
            history = known.history
            root = history.root
            tail = history.tail
            prefix = history.prefix
            chain = history.chain
            if chain is not None and (prefix is None or chain.count != len(prefix.spans)):
                chain = None
        read = partial(read_incoming, request, headers, tenant, chain)
        return Search(
            request=request,
            headers=headers,
            tenant=tenant,
            identity=identity,
            continued=(owner, response) if response is not None else None,
            known=Known(checked, root, tail) if checked else None,
            incoming=await off_the_loop(request, read, chain, tail=tail or b""),
        )

    async def _find(self, search: Search) -> ConversationMatch:
        """The match from memory, or from the store where that may know more."""
        verdict, settled = self._match(search)
        if settled and self.shared and _of(verdict) != (search.known and search.known.id):
            settled = await self._is_current(search.tenant, _of(verdict))
            verdict, still = self._match(search)
            settled = settled and still
        if not settled:
            verdict = await self._find_stored(search)
        anonymous = search.identity.value is None and search.continued is None
        if anonymous and verdict.kind is MatchKind.NEW:
            verdict = await self._find_rebuilt(search, verdict)
        if anonymous and verdict.kind in (MatchKind.NEW, MatchKind.FORK):
            verdict = await self._find_window(search, verdict)
        return verdict

    async def _find_stored(self, search: Search) -> ConversationMatch:
        """The match after the store was asked; what another gateway has continued since is loaded
        first."""
        tenant = search.tenant
        value = search.identity.value
        if search.incoming.hashes.start and search.continued is None:
            # The store is queried with the prefix hashes of the whole history.
            whole = partial(read_whole, search.headers, search.request, tenant)
            search.incoming = await off_the_loop(search.request, whole, None)
        incoming = search.incoming
        try:
            if value is not None:
                await self.loader.load_key(tenant, value)
            elif incoming.calls and looks_unique(incoming.calls):
                await self.loader.load_under(tenant, [calls_hash(tenant, incoming.calls)])
            if value is None or self.index.branches_of(tenant, value):
                await self.loader.load_prefix_hashes(tenant, incoming)
        except StoreError as exc:
            search.unread = exc.label
        verdict, _ = self._match(search)
        for _ in range(_RELOADS if self.shared else 0):
            current = await self._is_current(tenant, _of(verdict))
            verdict, _ = self._match(search)
            if current:
                break
        return verdict

    def _same_bytes(
        self, prefix: BodyPrefix, identity: Identity, tenant: str
    ) -> Conversation | None:
        """The conversation whose latest request this one begins with, byte for byte."""
        found = self.index.conversation_for_prefix(tenant, prefix)
        if found is None or identity.value in (None, found.external_key):
            return found
        return None

    def _match(self, search: Search) -> tuple[ConversationMatch, bool]:
        """The match from memory, and whether the store could not change it. The store may know more
        when another gateway, or this one before its last start, served requests of the same
        history."""
        identity = search.identity
        incoming = search.incoming
        if identity.source == FINGERPRINT and not self.settings.fingerprint:
            return match(incoming, {}, {}), True
        known, branches = self.index.known_prefix_hashes(incoming.hashes.candidates)
        if identity.value is None:
            if incoming.calls:
                branches |= self.index.awaiting_results(search.tenant, incoming)
            verdict = match(incoming, known, branches)
        else:
            branches = self.index.branches_of(search.tenant, identity.value)
            verdict = match(
                incoming,
                known,
                branches,
                conversation_id=search.given,
                weak=identity.weak,
                exclusive=identity.exclusive,
            )
        return verdict, is_settled(verdict, incoming, known, branches=branches, shared=self.shared)

    async def _is_current(self, tenant: str, name: str | None) -> bool:
        """Whether memory has the conversation as it is stored, as far as can be read."""
        with suppress(StoreError):
            return await self.loader.is_current(tenant, name)
        return True

    async def _find_rebuilt(self, search: Search, verdict: ConversationMatch) -> ConversationMatch:
        """The match of an unknown history, which may be known from its first reply on."""
        tenant = search.tenant
        incoming = search.incoming
        end = end_of_reply(incoming.messages)
        if end is None or incoming.hashes.start or not self.settings.fingerprint:
            return verdict
        tail = incoming.hashes.tail(b"", last=end)
        with suppress(StoreError):
            await self.loader.load_tail(tenant, tail)
        verdict, _ = self._match(search)
        if verdict.kind is not MatchKind.NEW:
            return verdict  # another request has opened it in the meantime
        strong = is_distinctive(incoming.hashes, incoming.messages, end)
        task = task_digest(incoming.messages)
        alike = [
            branch
            for branch in self.index.branches_with_tail(tenant, tail)
            if branch.signature == incoming.signature and (strong or branch.task == task)
        ]
        if len(alike) != 1:
            return verdict
        return ConversationMatch(
            kind=MatchKind.COMPACTION, conversation_id=alike[0].conversation_id
        )

    async def _find_window(self, search: Search, verdict: ConversationMatch) -> ConversationMatch:
        """The match of a history that has lost its beginning, or a part of its middle."""
        incoming = search.incoming
        tenant = search.tenant
        hashes = incoming.hashes
        if not self.settings.fingerprint:
            return verdict
        again = verdict.position == hashes.state.count
        if hashes.start or not (again or hashes.turns_after(verdict.position)):
            return verdict  # the prefix that is known shows which reply the request follows
        alike = self.index.known_under(verdict.prefix_hash)
        # What another conversation has been asked may be what this one asks next; one that loops,
        # and whose client drops messages, asks the same again.
        asked = None
        if again:
            asked = self.index.get(verdict.parent or "")
        other = None
        if asked is not None and asked.run.start is None:
            other = asked.id

        def newest() -> str | None:
            found = self.index.windows(tenant, incoming, alike)
            return next((name for name in found if name != other), None)

        if self.shared:
            chosen = None
        else:
            chosen = newest()
        if chosen is None:
            with suppress(StoreError):
                keys = [newest_key(tenant, digest) for digest in latest_turn(hashes)[1:]]
                await self.loader.load_under(tenant, keys)
            chosen = newest()
        if chosen is None:
            return verdict
        return ConversationMatch(kind=MatchKind.COMPACTION, conversation_id=chosen)

    async def _load_parent(self, tenant: str, parent: str, value: str | None) -> None:
        """Load the parent conversation when a sub-agent sends its first request."""
        known = value is not None and self.index.branches_of(tenant, value)
        if not known and not self.index.branches_of(tenant, parent):
            with suppress(StoreError):
                await self.loader.load_key(tenant, parent)

    async def resolve_unread(
        self,
        request: SteeredRequest,
        headers: Texts,
        tenant: str,
        key: str,
        now: float,
        beside: str,
    ) -> tuple[Resolved, Conversation]:
        """A request whose messages are not read, or one aside, and its conversation, `beside` where
        no id of the client names it; changes memory only.

        Without an id of the client it continues the conversation of the unread body whose messages
        it begins with; else it has one of its own. An id that several conversations may share does
        not say which one it is. Nothing is known of its history, so nothing of the conversation's
        history changes, and a request that is read matches it by the id only. `key`: the name of
        the gateway key that was sent."""
        identity = identify(headers, request.body, self.settings)
        if identity.value is None or identity.weak:
            identity = Identity(source=FINGERPRINT)
        value = identity.value
        given = None
        grown = None
        owner = (tenant, key, request.dialect.name, request.model)
        if value is not None:
            given = name = conversation_id(tenant, value)
            load = partial(self.loader.load_key, tenant, value)
        else:
            if request.unread:
                grown = await self._grown(request, headers, owner)
            name = (grown.conversation_id if grown is not None else beside) or ""
            load = partial(self.loader.load, tenant, name)
        found = self.index.get(name)
        if found is None and name:
            with suppress(StoreError):
                await load()
            found = self.index.get(name)
        incoming = _without_history(request, headers, tenant, conversation=found)
        kind = MatchKind.SIDE
        if request.unread:
            kind = MatchKind.CONTINUE if found is not None else MatchKind.NEW
        verdict = ConversationMatch(kind=kind, conversation_id=found.id if found else None)
        if found is None:
            found = open_conversation(
                self.index,
                verdict,
                identity,
                given=given,
                incoming=incoming,
                tenant=tenant,
                now=now,
            )
            # No hash: a request that is read later finds it by its id alone, and begins a run.
            branch = replace(found.history.branch, served_hash=b"", awaits=Awaits.ANYTHING)
            if not request.unread:  # the conversation itself has not begun
                branch = replace(branch, signature=b"", has_tools=False)
            found.history.branch = branch
        if grown is not None:
            self.index.growing_bodies.keep(owner, replace(grown, conversation_id=found.id))
        read = found.history.prefix
        self.index.used(found, len(read.raw) if read is not None else 0)
        return Resolved(source=identity.source, match=verdict, incoming=incoming), found

    async def _grown(
        self, request: SteeredRequest, headers: Texts, owner: tuple[str, ...]
    ) -> Growth | None:
        """The body and the earlier one that it continues; None if its messages have no place."""
        messages = messages_of(request.raw, request.spans(request.list_key))
        if messages is None:
            return None
        again = is_client_retry(headers)
        return await self.index.growing_bodies.find(owner, messages, again=again)


def _of(verdict: ConversationMatch) -> str | None:
    """The stored conversation that a match continues."""
    return verdict.parent or verdict.conversation_id


def _without_history(
    request: SteeredRequest,
    headers: Texts,
    tenant: str,
    conversation: Conversation | None,
) -> Incoming:
    """Returns the request with a random history, which equals no other, of as many messages as
    the conversation is known to have."""
    chain = None
    if conversation is not None:
        chain = conversation.history.chain
    root = token_bytes(16)
    count = 0
    if chain is not None:
        count = chain.count
    state = ChainState(root=root, digest=root, count=count)
    incoming = read_request(headers, request.body, tenant, own=())
    hashes = replace(incoming.hashes, start=count, digests=(root,), state=state)
    return replace(incoming, hashes=hashes)


async def off_the_loop(
    request: SteeredRequest,
    read: Callable[[], Incoming],
    resume: ChainState | None,
    tail: bytes = b"",
) -> Incoming:
    """The result of `read`, made in a thread for a big request: digests take a tenth of a second.
    `resume`: the chain of the messages that need not be read again; `tail`: their tail hash."""
    new = len(request.transcript)
    if resume is not None:
        new = new - resume.count or new  # the same request again is read as a whole
    if len(request.raw) >= BIG_BYTES or new > _MANY_MESSAGES:
        return await off_loop(lambda: with_tails(read(), tail))
    return read()


def read_incoming(
    request: SteeredRequest, headers: Texts, tenant: str, resume: ChainState | None
) -> Incoming:
    """The request as matching reads it; `resume`: the chain of the messages it begins with."""
    if request.earlier is not None:
        return read_whole(headers, request, tenant, resume=request.earlier.chain)
    incoming = read_whole(headers, request, tenant, resume=resume)
    if resume is not None and incoming.hashes.state.count == resume.count:
        # The same request again: a retry, or another run with an equal history so far. Only
        # the whole history distinguishes the two.
        return read_whole(headers, request, tenant)
    return incoming


def read_whole(
    headers: Texts,
    request: SteeredRequest,
    tenant: str,
    resume: ChainState | None = None,
) -> Incoming:
    """A request with all of its messages, also those that a stored answer or item stands for."""
    messages = None
    if request.named or request.earlier is not None:
        messages = request.transcript
    return read_request(
        headers,
        request.body,
        tenant,
        resume=resume,
        own=request.own_messages,
        messages=messages,
        compacts=request.dialect.compacts(request),
    )


def is_settled(
    verdict: ConversationMatch,
    incoming: Incoming,
    known: Mapping[bytes, Sequence[PrefixHashRef]],
    branches: Mapping[str, Branch],
    *,
    shared: bool,
) -> bool:
    """Whether the store could not change the match: it may know more than memory when another
    gateway, or this one before its last start, served requests of the same history. `shared`: other
    gateways use the store at the same time. Then memory lacks the latest requests of conversations
    that it knows, and conversations that fit better."""
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
            if incoming.client_retry or verdict.prefix_hash is None:
                return False
            ahead = verdict.ahead
            # With other gateways another conversation may have had the same request, and this reply
            # to it: the reply has to be known as the client sends it.
            if not ahead or ahead > 1 or shared:
                return not ahead
            # One reply ahead of what memory knows: that must be the hash of a request.
            return any(
                ref.served == verdict.prefix_hash
                for ref in known[verdict.prefix_hash]
                if ref.conversation_id == verdict.conversation_id
            )
        case MatchKind.NEW if verdict.conversation_id is None:
            # Without assistant turns the request is new: the store could only know a history.
            return not (incoming.hashes.state.turns or incoming.client_retry)
        case _:
            return False
