"""Applying a request to the history of its conversation, in memory.

The request continues a conversation, opens a new one or a fork of one, or brings a history that its
client has rewritten (`compact`)."""

from collections.abc import Sequence
from secrets import token_bytes, token_hex
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from gateway.conversations.conversation import (
    MAX_DEPTH,
    Conversation,
    CurrentRun,
    History,
    KeptFold,
    RunStart,
    SeenDigests,
    StepPlace,
    StoredResponse,
    first_hash,
    run_id,
)
from gateway.conversations.in_memory import ConversationIndex
from gateway.core.fold import RunSnapshot
from gateway.core.fsm import FSMState
from gateway.core.steer import RunMemory
from gateway.dialects import SteeredRequest
from gateway.steering.identity import (
    Awaits,
    ConversationMatch,
    Identity,
    Incoming,
    MatchKind,
    child_id,
    conversation_id,
)
from gateway.steering.identity.compaction import summarises
from gateway.steering.sub_agents import (
    HEADERS,
    UNNAMED,
    Order,
    SubAgent,
    prompt_digest,
    signed,
)
from gateway.steering.transcript.content import read_calls, read_content
from gateway.steering.transcript.user_words import task_of
from gateway.values import Texts
from gateway.wire.coerce import as_mapping
from gateway.wire.message_identity import digest_fields, is_result

# The version of a conversation that was opened while the store could not be read. None that is
# stored, and none that this one gets before it is, equals it: its first record is always compared
# with what is stored under its name.
UNREAD = -(2**40)
_CONTINUING = (MatchKind.CONTINUE, MatchKind.FORK, MatchKind.RETRY)
_KNOWN = (MatchKind.CONTINUE, MatchKind.COMPACTION, MatchKind.RETRY, MatchKind.SUMMARY)


class Known(NamedTuple):
    """The conversation whose latest request another one begins with, byte for byte."""

    id: str  # of that conversation
    root: bytes  # hash of the history's first message
    tail: bytes | None  # hash of the history from its first reply on; None when unknown


class Search(Struct, kw_only=True):
    """A request whose conversation is looked for."""

    request: SteeredRequest  # as the client wrote it
    headers: Texts  # names in lower case
    tenant: str  # only conversations of this one are found
    identity: Identity  # the id that the client sent, and where
    # the stored answer that it continues from, by id, and that one's conversation; None without
    continued: tuple[str, StoredResponse] | None
    known: Known | None  # the conversation by the body's first bytes; None when none begins alike
    incoming: Incoming  # what matching reads
    unread: str = ""  # why the store could not be asked; "" when it was or need not be

    @property
    def given(self) -> str | None:
        """The conversation that the client's own id names."""
        value = self.identity.value
        if value is not None:
            return conversation_id(self.tenant, value)
        return None


def apply_request(
    index: ConversationIndex, verdict: ConversationMatch, search: Search, now: float
) -> Conversation | None:
    """The conversation of a matched request, which becomes its latest one; None for a side request.
    `now`: seconds of the epoch, for a conversation that is opened."""
    found = _continued(index, verdict, search, now=now)
    if found is None or verdict.kind is MatchKind.SUMMARY:
        return found
    if search.continued and found.run.fold is None and verdict.kind in _CONTINUING:
        owner, response = search.continued
        earlier = search.request.earlier
        offset = 0
        if earlier is not None:
            offset = earlier.gone
        found.run.kept_fold = None
        found.run.start = RunStart(snapshot=response.snapshot, offset=offset, logged_in=owner)
    _remember(index, found, search)
    if not found.sub_agent.id:
        opened = verdict.kind in (MatchKind.NEW, MatchKind.FORK)
        _note_sub_agent(index, found, search, opened=opened)
    return found


def _note_sub_agent(
    index: ConversationIndex, found: Conversation, search: Search, *, opened: bool
) -> None:
    """Note that a conversation is a sub-agent's: by the headers, or because it begins with the
    prompt of a call that another agent has just made."""
    said = None
    if not HEADERS.isdisjoint(search.headers):
        said = signed(search.headers)
    elif search.request.addressed is not None and search.request.addressed.agent:
        said = Order()
    incoming = search.incoming
    turns = incoming.hashes.state.turns
    if said is None and not (opened and incoming.has_tools and not turns):
        return
    first = None
    if said and search.given:
        first = index.get(search.given)
    if first and first.sub_agent.id:  # its client has rewritten the history
        found.sub_agent = replace(first.sub_agent, since=0)
        return
    name = prompt_digest(task_of(incoming.messages, 0))
    if said and said.task:
        name = said.name
    order, maker = index.take_order(found, name, known=said is not None)
    said = said or order
    if said is None:
        return
    order = order or said
    if maker and not found.ancestors:
        found.history.branch = replace(found.history.branch, parent=maker)
        _join(index, found, None)
    found.sub_agent = SubAgent(
        id=found.id,
        kind=said.kind or order.kind or UNNAMED,
        task=said.task or order.task,
        since=incoming.hashes.state.count if opened and turns else 0,
    )


def _continued(
    index: ConversationIndex, verdict: ConversationMatch, search: Search, now: float
) -> Conversation | None:
    incoming = search.incoming
    if verdict.kind is MatchKind.SIDE:
        return None
    current = index.get(verdict.conversation_id) if verdict.conversation_id else None
    if current is None or verdict.kind not in _KNOWN:
        opened = open_conversation(
            index,
            verdict,
            search.identity,
            given=search.given,
            incoming=incoming,
            tenant=search.tenant,
            now=now,
        )
        if search.unread and current is None:
            opened.unsaved.version = UNREAD
        return opened
    run = current.run
    if incoming.compacts:
        run.memory = replace(run.memory, guidance=replace(run.memory.guidance, summary_asked=True))
    if verdict.kind is MatchKind.SUMMARY:
        return current
    history = current.history
    if run.kept_fold is not None and not run.kept_fold.has_read(incoming.hashes):
        run.kept_fold = None  # what was read before another gateway went on
    if verdict.kind is MatchKind.RETRY:
        history.branch = history.branch.retried()
        return current
    if verdict.kind is MatchKind.COMPACTION:
        compact(current, incoming)
        history.chain = None
    elif run.fold is not None:
        # A client may echo one reply as two messages, or add a system message: the same history,
        # but what the fold has read is no longer at the same positions.
        read = KeptFold(fold=run.fold, digest=history.branch.served_hash)
        if not read.has_read(incoming.hashes):
            run.fold = None
    history.branch = history.branch.extended(incoming)
    return current


def _remember(index: ConversationIndex, found: Conversation, search: Search) -> None:
    """Keep the bytes and the hash state of this request, for the next one to continue from."""
    request = search.request
    history = found.history
    hashes = search.incoming.hashes
    read = 0
    if history.chain is not None and hashes.start:
        read = history.chain.count
    fresh = max(read - hashes.start, 0)
    history.seen.add(hashes.messages[fresh:])
    if not read and not hashes.start:
        history.tail = b""
    elif not read:
        history.tail = search.known and search.known.tail
    if history.tail is not None:
        history.tail = hashes.tail(history.tail, fresh)
    if request.earlier is not None:
        history.prefix = None
    else:
        history.prefix = request.prefix
    history.chain = hashes.state
    if not history.root:
        root = b""
        if search.known and hashes.start:
            root = search.known.root
        parent = index.get(history.branch.parent) if history.branch.parent else None
        if parent is not None and request.earlier is not None:
            root = parent.history.root
        history.root = root or first_hash(hashes)
    digest = hashes.state.digest
    index.add_prefix_hash(found, digest, digest)
    index.used(found, len(request.raw))


def open_conversation(
    index: ConversationIndex,
    verdict: ConversationMatch,
    identity: Identity,
    given: str | None,
    incoming: Incoming,
    tenant: str,
    now: float,
) -> Conversation:
    """Open the conversation that begins with this request, and add it to the index. `given`: the
    conversation's id when the client sends one. `now` in seconds of the epoch."""
    name = verdict.conversation_id or given
    if name is None:
        name = conversation_id(tenant, incoming.hashes.state.digest.hex(), token_hex(8))
    elif verdict.kind is MatchKind.FORK and index.get(name) is not None:
        # A sample of a prompt of which more samples were taken than one hash is known under.
        name = child_id(name, token_bytes(8))
    branch = incoming.open_branch(name, verdict.parent)
    opened = Conversation(
        tenant=tenant,
        source=identity.source,
        external_key=identity.value,
        created_at=now,
        history=History(branch=replace(branch, task=task_digest(incoming.messages))),
        run=CurrentRun(started_at=now),
    )
    replaced = index.get(name)
    parent = index.get(verdict.parent) if verdict.parent else None
    if replaced is not None:
        # The stored runs keep their ids, so the new ones are counted after them.
        opened.unit = replaced.unit
        opened.sub_agent = replaced.sub_agent
        opened.ancestors = replaced.ancestors
        opened.unsaved.version = replaced.unsaved.version
        opened.run.index = replaced.run.index + bool(replaced.history.branch.signature)
        opened.run.start = RunStart(snapshot=RunSnapshot(run=opened.run.index))
    else:
        turns = incoming.hashes.turns[max(verdict.position - incoming.hashes.start, 0)]
        # One cache key may be that of all conversations of an application.
        if turns or not identity.weak:
            _join(index, opened, identity.parent)
        if parent is not None and verdict.position:
            _copy_state(parent, opened, verdict)
            opened.history.dropped = _dropped(parent, incoming, verdict)
    index.add(opened)
    return opened


def task_digest(messages: Sequence[object]) -> bytes:
    """Returns a digest of the user's first request, without the text that the client puts around
    it."""
    return digest_fields("task", task_of(messages, 0))


def _join(index: ConversationIndex, opened: Conversation, named: str | None) -> None:
    """Put a new conversation below its parent, whose experiment's unit it shares. The parent is the
    branch it was forked from, or the conversation that the client names. One that is not known yet
    will have its own id as its unit."""
    branch = opened.history.branch
    name = branch.parent
    parent = index.get(name) if name else None
    if parent is None and named is not None:
        by_client = conversation_id(opened.tenant, named)
        name = name or by_client
        parent = index.get(by_client)
        opened.unit = by_client
        if parent is not None:
            name = parent.id
            opened.history.branch = replace(branch, parent=name)
    if parent is not None:
        opened.unit = parent.unit or parent.id
    if name and name != opened.id:
        known = index.get(name)
        above = [name]
        if known is not None:
            above = [*known.ancestors, name]
        opened.ancestors = (*above[:1], *above[1:][1 - MAX_DEPTH :])


def _dropped(
    parent: Conversation, incoming: Incoming, verdict: ConversationMatch
) -> StepPlace | None:
    """The newest answer of an agent's conversation that a fork replaces, with the user message
    before it, by another user message: a person went back. A call under way is a parallel one."""
    branch = parent.history.branch
    newest = parent.snapshot()
    new = incoming.messages[verdict.position :]
    if branch.awaits is Awaits.MODEL or branch.signature != incoming.signature or newest is None:
        return None
    before = as_mapping(incoming.messages[verdict.position - 1])
    said = all(as_mapping(each).get("role") == "user" and not is_result(each) for each in new)
    if before.get("role") != "assistant" or not (new and said and branch.has_tools):
        return None
    if read_calls(before, read_content(before.get("content"))):
        return None
    return run_id(parent.id, newest.run), newest.steps


def _copy_state(parent: Conversation, child: Conversation, verdict: ConversationMatch) -> None:
    """Copy what the parent has up to the messages that the child shares with it."""
    run = child.run
    given = parent.run
    position = verdict.position
    child.sub_agent = parent.sub_agent
    guidance = given.memory.guidance.up_to(position)
    run.memory = RunMemory(guidance=guidance)
    if verdict.prefix_hash == parent.history.branch.served_hash:
        run.memory = replace(given.memory, guidance=guidance)
        run.resting = dict(given.resting)
    run.index = given.index
    run.judged = dict(given.judged)
    run.answers = [count for count in given.answers if count <= position]
    start = given.start
    if start is not None and start.offset <= position:
        # What a compaction removed is in the parent's run log only.
        run.start = replace(start, logged_in=parent.id)
    child.history.seen = SeenDigests(parent.history.seen.newest())


def compact(conversation: Conversation, incoming: Incoming) -> None:
    """Continue with a rewritten history: state, scores, caps and the windows of monitors are kept,
    because a shorter account does not undo what the agent did. The steps that the new history lacks
    are in the fold, or in the run log. After a final answer the windows restart, with the next run.
    """
    run = conversation.run
    snapshot, offset = _kept(conversation, incoming)
    kept = snapshot or (run.start.snapshot if run.start else RunSnapshot())
    logged_in = ""
    if kept.state is not FSMState.END:
        logged_in = conversation.id
    run.start = RunStart(snapshot=kept, offset=offset, logged_in=logged_in)
    if run.fold is not None and logged_in:
        run.fold.continue_in(offset)
    else:
        run.fold = run.kept_fold = None
    # The store keeps prefix hashes by the first message, and this history has a new one.
    conversation.history.root = b""
    run.answers.clear()
    guidance = run.memory.guidance.compacted(summed_up=incoming.has_compaction())
    run.memory = replace(run.memory, guidance=guidance)


def _kept(conversation: Conversation, incoming: Incoming) -> tuple[RunSnapshot | None, int]:
    """The run so far, and the first message that has not been scored yet."""
    hashes = incoming.hashes
    branch = conversation.history.branch
    snapshot = conversation.snapshot()
    if branch.awaits_results_of(incoming):
        return snapshot, hashes.start + _start_of_turn(hashes.turns, len(hashes.messages) - 1)
    newest = _newest_reply(conversation, incoming)
    if newest is not None:
        # The reply to the latest call is in the new history, and has not been scored yet.
        if snapshot is not None and snapshot.state is FSMState.END:
            # It was a final answer, and ends its run when it is read in the new history.
            snapshot = replace(snapshot, state=FSMState.NORMAL)
        return snapshot, hashes.start + _start_of_turn(hashes.turns, newest)
    if summarises(incoming, branch):
        snapshot = conversation.snapshot_before_reply()  # a summary, not a final answer
    return snapshot, hashes.state.count


def _newest_reply(conversation: Conversation, incoming: Incoming) -> int | None:
    """The position of the reply to the latest call in a history without results of its calls."""
    hashes = incoming.hashes
    history = conversation.history
    digest = history.branch.reply_digest
    if digest is None or digest not in hashes.messages:
        return None
    newest = len(hashes.messages) - 1 - hashes.messages[::-1].index(digest)
    chain = history.chain
    # The chain is that of an earlier request where another gateway has served the latest one.
    latest = chain is not None and chain.digest == history.branch.served_hash
    grown = chain is not None and latest and hashes.state.turns > chain.turns
    if history.branch.reply_calls and not grown and digest in history.seen:
        # An equal reply was seen earlier; if each message before this one was seen or is a result,
        # which a client may have cleared or cut, it is that earlier reply.
        before = enumerate(hashes.messages[:newest], start=hashes.start)
        unseen = (at for at, each in before if each is not None and each not in history.seen)
        if all(is_result(incoming.messages[at]) for at in unseen):
            return None
        return newest
    return newest


def _start_of_turn(turns: Sequence[int], position: int) -> int:
    """The first message of the assistant turn that the message at `position` is in or follows. A
    reply may be several items, of which only the newest is known."""
    turn = turns[position + 1]
    while position and turns[position] == turn:
        position -= 1
    return position
