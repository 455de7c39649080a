"""Applying an answer to its conversation, and the hashes under which later requests find it."""

from collections.abc import Iterator, Sequence
from typing import Any

from msgspec.structs import replace

from gateway.conversations.conversation import (
    REPLY,
    RESPONSE_KIND,
    Conversation,
    StoredResponse,
    first_hash,
    items_by_id,
    response_hash,
    slim,
)
from gateway.conversations.decision import Decision
from gateway.conversations.in_memory import ConversationIndex
from gateway.dialects.base import ANSWER_ID, ECHO
from gateway.steering.identity import (
    Arrival,
    Awaits,
    MatchKind,
    calls_hash,
    clean_call_ids,
    looks_unique,
)
from gateway.steering.identity.branch import line_hashes_of
from gateway.steering.identity.rebuilt import newest_key, tail_key
from gateway.stores.records import PrefixHashRecord
from gateway.values import FieldDict, Fields, Value
from gateway.wire.message_identity import content_text, reply_message
from gateway.wire.prefix_hash import PrefixHashes, extend

_CALLS_KIND = "calls"
_NEWEST_KIND = "newest"
_TAIL_KIND = "tail"


class AppliedReply(Value):
    """An answer as its conversation took it; the default: nothing could be read of it."""

    hashes: tuple[PrefixHashRecord, ...] = ()  # under which later requests find it
    usable: bool = False  # it says or calls anything; a client asks again after one without
    ends_run: bool = False  # it is the final answer of its run


def apply_reply(
    decision: Decision,
    completion: Fields | None,
    choices: Sequence[tuple[FieldDict, str | None]],
    index: ConversationIndex,
    *,
    keep: bool = True,
    pending_id: str | None = None,
    stored: bool = False,
) -> AppliedReply:
    """Apply the answer to the conversation. `choices`: see `replies_in`. `keep`: whether the
    reply's content may be stored, for clients that leave the history to the server. `pending_id`:
    the id of an answer that is still being made. `stored`: the store has the call without its
    answer."""
    conversation = decision.conversation
    hashes = decision.resolved.incoming.hashes
    history = conversation.history
    served = hashes.state.digest
    if decision.resolved.match.kind is MatchKind.SUMMARY:
        for message, _ in choices[:1]:  # the summary, with which any request may come next
            lines = line_hashes_of(content_text(message.get("content")))
            history.branch = replace(history.branch, awaits=Awaits.ANYTHING, line_hashes=lines)
            history.seen.add(extend(hashes.state, [reply_message(message)]).messages)
        return AppliedReply()
    step = decision.position.step
    # A history without a message has no root yet.
    made = [
        _record(
            conversation,
            step,
            served,
            position=hashes.state.count,
            kind="served",
            root=history.root or served,
        )
    ]
    usable = False
    ends_run = False
    name = pending_id
    reply = []
    if completion is None or not choices:
        history.branch = history.branch.failed(served)
    else:
        name = completion.get(ANSWER_ID)
        reply = echoed_items(completion)
        for position, (message, finish) in enumerate(choices):
            echoed = extend(hashes.state, reply or [reply_message(message)])
            digest = echoed.state.digest
            count = echoed.state.count
            index.add_prefix_hash(conversation, digest, served)
            root = history.root or first_hash(echoed)
            kind = REPLY + served.hex()
            made.append(_record(conversation, step, digest, position=count, kind=kind, root=root))
            if position == 0:
                usable, ends_run = _apply_first(decision, message, finish, echoed=echoed)
                index.index_reply(conversation)
                if conversation.history.branch.awaits is Awaits.TOOLS:
                    index.add_calls(conversation, message)
                for key, kind in _keys(conversation, index):
                    made.append(_record(conversation, step, key, position=count, kind=kind))
        if name:
            index.keep_items(conversation.tenant, items_by_id(reply))
    if (
        name
        and (response := _response(decision, name, reply, keep=keep, stored=stored)) is not None
    ):
        index.add_response(conversation, response)
        key = response_hash(conversation.tenant, name)
        made.append(
            _record(conversation, step, key, position=response.after.count, kind=RESPONSE_KIND)
        )
    return AppliedReply(hashes=tuple(made), usable=usable, ends_run=ends_run)


def echoed_items(completion: Fields) -> list[Any]:
    """The items of an answer, in a dialect that has several for one reply; else empty."""
    choices = completion["choices"]
    if len(choices) == 1 and isinstance(choices[0], dict):
        echo = choices[0].get(ECHO)
        return echo if isinstance(echo, list) else []
    return []


def replies_in(completion: Fields | None) -> list[tuple[FieldDict, str | None]]:
    """(message, finish reason) of each choice that has a message; empty without a completion."""
    choices = (completion or {}).get("choices")
    found = []
    for choice in choices if isinstance(choices, list) else ():
        if isinstance(choice, dict) and isinstance(message := choice.get("message"), dict):
            found.append((message, choice.get("finish_reason")))
    return found


def _record(
    conversation: Conversation,
    step: int,
    digest: bytes,
    position: int,
    kind: str,
    root: bytes | None = None,
) -> PrefixHashRecord:
    """A stored hash that covers `position` messages; `root` None: it is a group of one."""
    return PrefixHashRecord(
        tenant=conversation.tenant,
        root=digest if root is None else root,
        digest=digest,
        conversation_id=conversation.id,
        position=position,
        kind=kind,
        step=step,
    )


def _apply_first(
    decision: Decision, message: Fields, finish: str | None, echoed: PrefixHashes
) -> tuple[bool, bool]:
    """Make this the conversation's latest reply; a final answer ends its run. Returns whether it is
    usable, and whether it ends the run."""
    conversation = decision.conversation
    history = decision.conversation.history
    fold = conversation.run.fold
    before = history.branch.fallback_hash
    compacts = decision.resolved.incoming.compacts
    final = finish == "stop" and fold is not None and not compacts and fold.peek_final(message)
    called = bool(message.get("tool_calls") or message.get("function_call"))
    idle = final or not called
    # The history's own tail hash may be unknown, or that of another request by now.
    tail = b""
    chain = history.chain
    if final and history.tail is not None and chain is not None and chain.count == echoed.start:
        tail = echoed.tail(history.tail)
    digests = [digest for digest in echoed.messages if digest is not None]
    history.branch = history.branch.answered(
        decision.resolved.incoming.hashes.state.digest,
        digests[-1] if digests else None,
        final=idle,
        line_hashes=line_hashes_of(content_text(message.get("content"))) if idle else (),
        calls=clean_call_ids(echoed.state.call_ids),
        tail=tail,
        echoed_hash=echoed.state.digest,
    )
    if final:
        conversation.run.note_answer(echoed.state.count)
    if compacts:  # a client may go on from its history all the same
        history.branch = replace(history.branch, fallback_hash=before)
    elif decision.position.run == conversation.run.index:
        if final:
            conversation.unsaved.ended_run = decision.position.run
        else:
            conversation.unsaved.ended_run = None
    return called or bool(message.get("content") or message.get("refusal")), final


def _keys(conversation: Conversation, index: ConversationIndex) -> Iterator[tuple[bytes, str]]:
    """Returns (hash, kind) pairs by which another gateway finds the run of an agent that sends
    no id. One kind finds an agent that shortens its history: the hash of the latest reply, or of
    its calls. The other finds an agent that rewrites the beginning of its history: the hash of
    the messages from the first reply on."""
    branch = conversation.history.branch
    tenant = conversation.tenant
    if conversation.external_key is not None:
        return
    if conversation.run.start is not None:
        if branch.reply_calls and looks_unique(branch.reply_calls):
            yield calls_hash(tenant, branch.reply_calls), _CALLS_KIND
        elif branch.reply_digest:
            yield newest_key(tenant, branch.reply_digest), _NEWEST_KIND
    if branch.tail:
        key = tail_key(tenant, branch.tail)
        index.add_prefix_hash(conversation, key, branch.served_hash)
        yield key, _TAIL_KIND


def _response(
    decision: Decision, response_id: str, reply: Sequence[Any], *, keep: bool, stored: bool
) -> StoredResponse | None:
    """The answer as a later request may continue it by its id."""
    conversation = decision.conversation
    chain = decision.resolved.incoming.hashes.state
    known = conversation.history.responses
    if stored and response_id in known:
        snapshot = known[response_id].snapshot  # the fold may have newer steps by now
    elif conversation.run.fold is not None:
        snapshot = conversation.run.fold.runs[-1].snapshot()
    else:
        return None
    kept = tuple(slim(item) for item in reply)
    after = extend(chain, kept).state
    return StoredResponse(
        id=response_id, chain=chain, after=after, snapshot=snapshot, reply=kept, storable=keep
    )


def note_failed(decision: Decision) -> None:
    """There is no whole answer: the client may send the request again."""
    history = decision.conversation.history
    history.branch = history.branch.failed(decision.resolved.incoming.hashes.state.digest)


def note_sending(decision: Decision) -> None:
    """The whole answer is there: until it is sent, the same request is a sample, no retry."""
    _note_delivery(decision, Arrival.SENDING)


def note_delivered(decision: Decision, applied: AppliedReply) -> None:
    """The client has the whole answer: the same request once more is a sample, no retry."""
    if applied.usable:
        _note_delivery(decision, Arrival.DONE)


def note_ended(decision: Decision) -> None:
    """Nothing more is sent: of an answer that was not delivered, the request may come again."""
    if decision.conversation.history.branch.delivery is Arrival.SENDING:
        _note_delivery(decision, Arrival.UNKNOWN)


def note_cut(decision: Decision) -> None:
    """The client has gone; if it did not get the whole answer, it broke it off."""
    history = decision.conversation.history
    served = decision.resolved.incoming.hashes.state.digest
    if history.branch.served_hash == served and history.branch.delivery is not Arrival.DONE:
        history.cut = served


def _note_delivery(decision: Decision, delivery: Arrival) -> None:
    history = decision.conversation.history
    served = decision.resolved.incoming.hashes.state.digest
    history.branch = history.branch.delivered(served, delivery)
