"""Stored conversations: loading them, refreshing those in memory, joining two versions of one.

ConversationLoader  loads what is not in memory, or is newer in the store
refresh             gives a conversation in memory the state that another gateway has stored. What
                    was read from the bytes of its latest request stays true, because the next
                    request begins with the same bytes (the hashes, and the fold as far as scores,
                    answers and priors are the same), so that a call costs the messages that came
                    since. Everything that was decided is taken from the store.
merge               joins two versions that were saved by two gateways. What a gateway injected
                    cannot be derived again: without it the next request would lose guidance that
                    the model has read. The rest is that of the gateway that is further.
LoggedSteps         the steps of a run that its transcript no longer has, from the run log"""

import json
from collections.abc import Iterable, Sequence
from functools import partial

from msgspec.structs import replace

from gateway.conversations.codec import from_record, to_record
from gateway.conversations.conversation import (
    KEPT_PER_CONVERSATION,
    MAX_ANSWERS,
    REPLY,
    Conversation,
    CurrentRun,
    KeptFold,
    StoredResponse,
    response_hash,
    run_id,
)
from gateway.conversations.in_memory import ConversationIndex
from gateway.core.fold import RunSnapshot
from gateway.core.step import Step
from gateway.observability.logging import get_logger
from gateway.steering.identity import Identity, Incoming, PrefixHashRef, child_id
from gateway.steering.identity.rebuilt import tail_key
from gateway.steering.runs_of_transcript import ConversationFold
from gateway.stores.call_json import decoded, encoded
from gateway.stores.protocols import StateStore, StoreError
from gateway.stores.records import (
    CallRecord,
    ConversationRecord,
    PrefixHashRecord,
    StepContent,
    StepRow,
)
from gateway.stores.sql.runs import RunStore
from gateway.stores.time_limits import Reads
from gateway.values import FieldDict

_log = get_logger("gateway.conversations")
_MAX_PARENTS = 16  # forks of forks; a fork has rows only from the step at which it left its parent


class ConversationLoader:
    """Loads conversations into an index: by id, prefix hash, awaited calls or answer id."""

    def __init__(self, index: ConversationIndex, store: StateStore):
        self._index = index
        self._store = store

    async def load_key(self, tenant: str, external_key: str) -> None:
        """Load the conversations under a client's id."""
        for record in reversed(await self._store.branches(tenant, external_key)):
            self._restore(record)

    async def load_prefix_hashes(self, tenant: str, incoming: Incoming) -> None:
        """Load the conversations that have a prefix hash in this history. A conversation in
        memory is loaded again if the store has newer hashes of it, because another gateway has
        served it since."""
        digests = [digest for _, digest in reversed(incoming.hashes.candidates)]
        if digests:
            rows = await self._store.find_prefix_hashes(tenant, digests)
        else:
            rows = []
        refs = [(row, _ref(row)) for row in rows]
        unknown = {row.conversation_id for row, r in refs if not self._index.knows(row.digest, r)}
        for conversation_id in unknown:
            await self.load(tenant, conversation_id)
        # The newest is added last, because the index drops the oldest hashes first.
        for row, ref in reversed(refs):
            found = self._index.get(row.conversation_id)
            if found is not None:
                self._index.add_prefix_hash(found, row.digest, ref.served)

    async def is_current(self, tenant: str, conversation_id: str | None) -> bool:
        """Whether memory has the conversation as it is stored; if not, it is loaded. Another
        gateway may have continued it with another history that began alike."""
        known = None
        if conversation_id:
            known = self._index.get(conversation_id)
        if known is None or known.lock.locked():
            return True
        if await self._store.version(tenant, known.id) <= known.unsaved.version:
            return True
        await self.load(tenant, known.id)
        return False

    async def load_under(self, tenant: str, keys: Sequence[bytes]) -> list[str]:
        """Load the conversations that are stored under these hashes; their ids."""
        rows = await self._store.find_prefix_hashes(tenant, keys) if keys else ()
        for row in rows:
            await self.load(tenant, row.conversation_id)
        return [row.conversation_id for row in rows]

    async def load_tail(self, tenant: str, tail: bytes) -> None:
        """Load the conversations whose history is this from its first reply to its latest one."""
        key = tail_key(tenant, tail)
        for name in await self.load_under(tenant, [key]):
            found = self._index.get(name)
            if found is not None:
                self._index.add_prefix_hash(found, key, found.history.branch.served_hash)

    async def response(self, tenant: str, response_id: str) -> tuple[str, StoredResponse | None]:
        """The answer with this id, and its conversation's id; ("", None) when it is unknown."""
        found = self._index.response(tenant, response_id)
        if found is None:
            await self.load_under(tenant, [response_hash(tenant, response_id)])
            found = self._index.response(tenant, response_id)
        return found or ("", None)

    async def newest_response(
        self, tenant: str, external_key: str
    ) -> tuple[str, StoredResponse | None]:
        """The latest answer under a client's id, and its conversation's id."""
        found = self._index.newest_response(tenant, external_key)
        if found is None:
            await self.load_key(tenant, external_key)
            found = self._index.newest_response(tenant, external_key)
        return found or ("", None)

    async def items(self, tenant: str, ids: Iterable[str]) -> FieldDict:
        """The items with these ids, from memory or the store, as far as they are known."""
        wanted = list(dict.fromkeys(ids))
        found = self._index.items(tenant, wanted)
        if missing := [name for name in wanted if name not in found]:
            for name, content in (await self._store.find_items(tenant, missing)).items():
                found[name] = json.loads(content)
            self._index.keep_items(tenant, found)
        return found

    async def load(self, tenant: str, conversation_id: str) -> None:
        """Load one conversation, or its newer version."""
        record = await self._store.load(tenant, conversation_id)
        if record is not None:
            self._restore(record)

    def _restore(self, record: ConversationRecord) -> None:
        known = self._index.get(record.id)
        if known is not None and (known.unsaved.version >= record.version or known.lock.locked()):
            # A locked conversation is being stored: the newer version may be its own.
            return
        try:
            conversation = from_record(record)
        except ValueError as exc:
            _log.warning("stored conversation cannot be read", reason=str(exc))
            return
        if known is not None and can_refresh(known, conversation):
            responses = conversation.history.responses
            refresh(known, conversation)
            self._index.refreshed(known, responses.values())
            conversation = known
        else:
            self._index.add(conversation)
        served = record.served_head
        echoed = conversation.history.branch.echoed_hash
        if served:
            self._index.add_prefix_hash(conversation, served, served)
        if served and echoed:
            self._index.add_prefix_hash(conversation, echoed, served)
        self._index.index_reply(conversation)


def _ref(row: PrefixHashRecord) -> PrefixHashRef:
    replied = row.kind.startswith(REPLY)
    if replied:
        served = bytes.fromhex(row.kind.removeprefix(REPLY))
    else:
        served = row.digest
    return PrefixHashRef(conversation_id=row.conversation_id, served=served)


def can_refresh(known: Conversation, stored: Conversation) -> bool:
    """True if the conversation in memory has read everything that its stored state continues
    from. False while it holds changes that are not stored, and after a compaction, which changes
    the history. False after a retry as well: that call may still be under way, and would be
    saved over a newer state."""
    return (
        known.history.chain is not None
        and known.run.start == stored.run.start
        and not known.busy
        and not known.history.branch.retries
        and not known.unsaved.steps
    )


def refresh(known: Conversation, stored: Conversation) -> None:
    """Give the conversation in memory the state of its stored version."""
    own = known.run
    run = stored.run
    chain = known.history.chain
    kept = own.kept_fold
    if own.fold is not None and chain is not None and chain.count == own.fold.consumed:
        kept = KeptFold(fold=own.fold, digest=chain.digest)
    if kept is not None and _agrees(kept.fold, own, run):
        run.kept_fold = kept
        run.undecided = own.undecided
    known.run = run
    known.unsaved = stored.unsaved
    known.unit = stored.unit
    known.ancestors = stored.ancestors
    if stored.sub_agent.id:
        known.sub_agent = stored.sub_agent
    known.history.branch = stored.history.branch
    known.history.seen.join(stored.history.seen)


def _agrees(fold: ConversationFold, run: CurrentRun, stored: CurrentRun) -> bool:
    """Whether a new fold of the same messages would be equal to this one."""
    newest = fold.current
    read = fold.consumed
    if run.judged != stored.judged:
        # A model is asked for the newest step only, and not again for one that it has scored: then
        # all scores that it gave since are of later steps.
        scored = not newest.steps or newest.score_key in run.judged
        if not scored or not run.judged.items() <= stored.judged.items():
            return False
    answers = {count for count in run.answers if count <= read}
    return answers == {count for count in stored.answers if count <= read}


def merge(conversation: Conversation, stored: Conversation, *, tokens: int) -> None:
    """Join what is stored of a conversation by now into the one in memory, to be saved over it.
    `tokens`: of the call that is being saved, which the stored run does not count. Raises:
    HistoriesDiffer, when two gateways gave one name to two histories: an agent with another task
    has sent the same id while one of them could not read of the other. An id that names exactly
    one conversation is that of another agent only if its role and tools differ, too."""
    one = conversation.history.branch
    other = stored.history.branch
    exclusive = Identity(source=conversation.source).exclusive
    known = all((one.task, other.task, one.served_hash, other.served_hash))
    alike = one.task == other.task or (exclusive and one.signature == other.signature)
    if known and not alike:
        raise HistoriesDiffer(f"{stored.id} is the conversation of another agent")
    behind = _progress(stored) > _progress(conversation)
    responses = stored.history.responses | conversation.history.responses
    newest = list(responses)[-KEPT_PER_CONVERSATION:]
    conversation.history.responses = {name: responses[name] for name in newest}
    run = conversation.run
    theirs = stored.run
    if run.index == theirs.index:
        further = (theirs if behind else run).memory
        run.memory = run.memory.merged(theirs.memory, further=further, tokens=tokens)
        judged = theirs.judged | run.judged
        run.judged.clear()  # in place: a fold that goes on reads the same objects
        run.judged.update(judged)
        for model, left in theirs.resting.items():
            run.resting[model] = max(left, run.resting.get(model, 0))
    run.answers[:] = sorted({*theirs.answers, *run.answers})[-MAX_ANSWERS:]
    if behind:
        _take_over(conversation, stored)
    conversation.unsaved.version = stored.unsaved.version


def merged_call(call: CallRecord, stored: ConversationRecord) -> CallRecord:
    """A call that waited to be saved, over what is stored of its conversation by now."""
    own = call.conversation
    made = [step.call for step in call.steps if step.call is not None]
    tokens = sum((each.input_tokens or 0) + (each.output_tokens or 0) for each in made)
    try:
        conversation = from_record(own)
        merge(conversation, from_record(stored), tokens=tokens)
        merged = to_record(conversation, own.message_count, max(own.updated_at, stored.updated_at))
    except HistoriesDiffer:
        return _branched(call, conversation)
    except ValueError:  # one of them cannot be read: then the newer one stays
        merged = replace(own, version=stored.version)
    return replace(call, conversation=merged)


def _branched(call: CallRecord, conversation: Conversation) -> CallRecord:
    """The call as one of a branch of the conversation that its name stands for. The branch has the
    same name in every gateway."""
    old = conversation.id
    branch = conversation.history.branch
    name = conversation.id = child_id(old, branch.task)
    conversation.history.branch = replace(branch, conversation_id=name, parent=old)
    conversation.ancestors = (*conversation.ancestors, old)
    conversation.unsaved.version = 0
    # No other text looks like an id: it has 24 random characters.
    moved = decoded(encoded(call).replace(old.encode(), name.encode()))
    record = to_record(conversation, call.conversation.message_count, call.conversation.updated_at)
    return replace(moved, conversation=record)


def _progress(conversation: Conversation) -> tuple[int, int]:
    snapshot = conversation.snapshot()
    return (conversation.run.index, snapshot.steps if snapshot is not None else 0)


def _take_over(conversation: Conversation, stored: Conversation) -> None:
    """Continue from where the other gateway is."""
    if conversation.run.index != stored.run.index:
        answers = conversation.run.answers
        conversation.run = stored.run
        conversation.run.answers = answers
    conversation.run.start = stored.run.start
    conversation.run.routed = stored.run.routed
    conversation.history.branch = stored.history.branch
    own = conversation.unsaved
    theirs = stored.unsaved
    own.snapshot = theirs.snapshot
    own.ended_run = theirs.ended_run
    own.state_before_end = theirs.state_before_end
    conversation.forget_transcript()


class HistoriesDiffer(StoreError, label="conflict"):
    """The record is one of a branch (`merged_call`), not of the conversation that has its name."""


class LoggedSteps:
    """Reads the earlier steps of a run, which monitors and scorer need, from the store."""

    def __init__(self, runs: RunStore, states: StateStore, read: Reads):
        self._read = read
        self._runs = runs
        self._states = states

    async def read(self, tenant: str, conversation_id: str, upto: RunSnapshot) -> tuple[Step, ...]:
        """The scored steps of a run, oldest first, as far as they were recorded. Empty when the
        store cannot be read: it is better to restart the windows than not to steer."""
        try:
            rows = await self._rows(tenant, conversation_id, upto)
        except StoreError as exc:
            _log.warning("earlier steps not read", reason=str(exc))
            return ()
        return tuple(_step(row) for _, row in sorted(rows.items()))

    async def _rows(
        self, tenant: str, conversation_id: str, upto: RunSnapshot
    ) -> dict[int, StepRow]:
        rows: dict[int, StepRow] = {}
        name: str | None = conversation_id
        first = upto.steps + 1
        for _ in range(_MAX_PARENTS):
            if name is None or first <= 1:
                break
            get = partial(self._runs.get_run, run_id(name, upto.run), tenant=tenant, limit=first)
            found = await self._read(get)
            if found is not None:
                own = found.steps
            else:
                own = ()
            rows |= {row.step_index: row for row in own if row.difficulty is not None}
            first = min(rows, default=first)
            record = None
            if first > 1:
                record = await self._states.load(tenant, name)
            name = None
            if record is not None:
                name = record.parent_id
        return rows


def _step(row: StepRow) -> Step:
    content = row.content or StepContent()
    return Step(
        index=row.step_index - 1,
        thought=content.thought,
        prompted=content.prompted,
        actions=content.actions,
        reasoning=content.reasoning,
    )
