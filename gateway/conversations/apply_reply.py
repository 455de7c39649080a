"""Applying an answer to its conversation, and the hashes under which later requests find it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gateway.conversations.conversation import (
    RESPONSE_KIND,
    Conversation,
    History,
    StoredResponse,
    first_hash,
    items_by_id,
    response_hash,
)
from gateway.conversations.index import ConversationIndex
from gateway.conversations.loading import reply_kind
from gateway.conversations.steering_result import SteeringResult
from gateway.dialects.base import ANSWER_ID, ECHO
from gateway.steering.fsm import FSMState
from gateway.steering.identity import calls_hash, clean_call_ids, looks_unique
from gateway.steering.identity.branch import line_hashes_of
from gateway.steering.identity.rebuilt import extend_tail, newest_key, tail_key
from gateway.stores.records import PrefixHashRecord
from gateway.wire.messages import content_text, reply_message
from gateway.wire.prefix_hash import PrefixHashes, extend

_CALLS_KIND = "calls"
_NEWEST_KIND = "newest"
_TAIL_KIND = "tail"


def apply_reply(
    result: SteeringResult,
    completion: Mapping[str, Any] | None,
    index: ConversationIndex,
    *,
    keep: bool = True,
    pending_id: str | None = None,
) -> tuple[PrefixHashRecord, ...]:
    """Apply the answer to the conversation; the hashes under which later requests find it.

    `keep`: whether the reply's content may be stored, for clients that leave the history to the
    server. `pending_id`: the id of an answer that is still being made.
    """
    conversation, hashes = result.conversation, result.resolved.incoming.hashes
    served = hashes.full
    record = _Records(result)
    made = [record.make(served, hashes.state.count, "served")]
    choices = replies_in(completion)
    if completion is None or not choices:
        conversation.history.branch = conversation.history.branch.failed(served)
        return (*made, *_response_hash_record(result, pending_id, (), index, record, keep=keep))
    for position, (message, finish) in enumerate(choices):
        echo = echoed_items(completion) or [reply_message(message)]
        echoed = extend(hashes.state, echo)
        index.add_prefix_hash(conversation, echoed.full, served)
        root = conversation.history.root or first_hash(echoed)
        made.append(record.make(echoed.full, echoed.state.count, reply_kind(served), root=root))
        if position == 0:
            _apply_first(result, message, finish, echoed)
            index.index_reply(conversation)
            made += _latest_reply(conversation, record, echoed.state.count)
            made += _tail_record(conversation, record, index, echoed.state.count)
    name, reply = completion.get(ANSWER_ID), echoed_items(completion)
    if name:
        index.keep_items(conversation.tenant, items_by_id(reply))
    return (*made, *_response_hash_record(result, name, reply, index, record, keep=keep))


def echoed_items(completion: Mapping[str, Any]) -> list[Any]:
    """The items of an answer, in a dialect that has several for one reply; else empty."""
    choices = completion["choices"]
    first = choices[0] if len(choices) == 1 else None
    echo = first.get(ECHO) if isinstance(first, dict) else None
    return echo if isinstance(echo, list) else []


def replies_in(completion: Mapping[str, Any] | None) -> list[tuple[dict[str, Any], str | None]]:
    """(message, finish reason) of each choice that has a message; empty without a completion."""
    choices = completion.get("choices") if completion else None
    found = []
    for choice in choices if isinstance(choices, list) else ():
        message = choice.get("message") if isinstance(choice, dict) else None
        if isinstance(message, dict):
            found.append((message, choice.get("finish_reason")))
    return found


class _Records:
    """Makes the stored prefix hashes of one call."""

    def __init__(self, result: SteeringResult) -> None:
        self._conversation = result.conversation
        self._step = result.position.step

    def make(
        self, digest: bytes, position: int, kind: str, *, root: bytes | None = None
    ) -> PrefixHashRecord:
        """A hash that covers `position` messages; `root` None = that of the conversation, which a
        history without a message does not have yet."""
        conversation = self._conversation
        return PrefixHashRecord(
            tenant=conversation.tenant,
            root=(conversation.history.root or digest) if root is None else root,
            digest=digest,
            conversation_id=conversation.id,
            position=position,
            kind=kind,
            step=self._step,
        )


def _apply_first(
    result: SteeringResult, message: Mapping[str, Any], finish: str | None, echoed: PrefixHashes
) -> None:
    """Make this the conversation's latest reply; a final answer ends its run."""
    conversation, fold = result.conversation, result.conversation.run.fold
    final = finish == "stop" and fold is not None and fold.peek_final(message)
    idle = final or not (message.get("tool_calls") or message.get("function_call"))
    history = conversation.history
    history.branch = history.branch.answered(
        result.resolved.incoming.hashes.full,
        _newest(echoed.messages),
        final=idle,
        line_hashes=line_hashes_of(content_text(message.get("content"))) if idle else (),
        calls=clean_call_ids(echoed.state.call_ids),
        tail=_tail(history, echoed) if final else b"",
        echoed_hash=echoed.full,
    )
    result.usable = _is_usable(message)
    if final:
        result.state_after = FSMState.END
        conversation.run.note_answer(echoed.state.count)
    if result.position.run == conversation.run.index:
        conversation.unsaved.ended_run = result.position.run if final else None


def _is_usable(message: Mapping[str, Any]) -> bool:
    """Whether a reply says or calls anything that a client can go on with."""
    called = message.get("tool_calls") or message.get("function_call")
    return bool(called or message.get("content") or message.get("refusal"))


def _latest_reply(
    conversation: Conversation, record: _Records, position: int
) -> Iterator[PrefixHashRecord]:
    """Hashes of the latest reply and of its calls, for an agent that shortens its history and sends
    no id: by them another gateway finds the run."""
    branch, tenant = conversation.history.branch, conversation.tenant
    if conversation.run.start is None or conversation.external_key is not None:
        return
    if branch.reply_calls and looks_unique(branch.reply_calls):
        digest = calls_hash(tenant, branch.reply_calls)
        yield record.make(digest, position, _CALLS_KIND, root=digest)
    elif branch.reply_digest:
        digest = newest_key(tenant, branch.reply_digest)
        yield record.make(digest, position, _NEWEST_KIND, root=digest)


def _tail(history: History, echoed: PrefixHashes) -> bytes:
    """The tail hash of the history with a final answer; empty for a history whose own is unknown,
    or is that of another request by now."""
    chain = history.chain
    if history.tail is None or chain is None or chain.count != echoed.start:
        return b""
    return extend_tail(history.tail, echoed)


def _tail_record(
    conversation: Conversation, record: _Records, index: ConversationIndex, position: int
) -> Iterator[PrefixHashRecord]:
    """A hash of the history from its first reply on, for a client that sends no id and rebuilds
    what comes before when it continues."""
    branch = conversation.history.branch
    if branch.tail and conversation.external_key is None:
        key = tail_key(conversation.tenant, branch.tail)
        index.add_prefix_hash(conversation, key, branch.served_hash)
        yield record.make(key, position, _TAIL_KIND, root=key)


def _response_hash_record(
    result: SteeringResult,
    response_id: str | None,
    reply: Sequence[Any],
    index: ConversationIndex,
    record: _Records,
    *,
    keep: bool,
) -> Iterator[PrefixHashRecord]:
    """The hash of the answer's id, from which a later request may continue."""
    conversation, chain = result.conversation, result.resolved.incoming.hashes.state
    known = conversation.history.responses
    if not response_id:
        return
    if result.stored and response_id in known:
        snapshot = known[response_id].snapshot  # the fold may have newer steps by now
    elif conversation.run.fold is not None:
        snapshot = conversation.run.fold.current.snapshot()
    else:
        return
    response = StoredResponse.of(response_id, chain, reply, snapshot, storable=keep)
    index.add_response(conversation, response)
    digest = response_hash(conversation.tenant, response_id)
    yield record.make(digest, response.after.count, RESPONSE_KIND, root=digest)


def _newest(digests: Sequence[bytes | None]) -> bytes | None:
    return next((digest for digest in reversed(digests) if digest is not None), None)
