"""What an answer makes of its conversation, and how it is found again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gateway.conversations.answered import RESPONSE_KIND, answered, items_by_id, response_head
from gateway.conversations.index import ConversationIndex, reply_kind
from gateway.conversations.memo import Conversation
from gateway.conversations.replies import echo_of, messages_of
from gateway.conversations.steered import Steered
from gateway.dialects.base import ANSWER_ID
from gateway.steering.conversation import calls_head, is_random, sane_calls
from gateway.steering.fsm import FSMState
from gateway.steering.identity.summary import marks_of
from gateway.stores.records import HeadRecord
from gateway.wire.heads import Heads, extend
from gateway.wire.messages import content_text, reply_message

_CALLS_KIND = "calls"


def settle(
    steered: Steered,
    completion: Mapping[str, Any] | None,
    index: ConversationIndex,
    *,
    keep: bool = True,
    under_way: str | None = None,
) -> tuple[HeadRecord, ...]:
    """Take the answer into the conversation; the heads under which it can be found again.

    `keep`: whether the reply's content may be stored, where the client leaves it to the server.
    `under_way`: the id of an answer that is still being made.
    """
    conversation = steered.conversation
    incoming = steered.recalled.incoming
    served = incoming.heads.full
    base = {
        "tenant": conversation.tenant,
        "root": conversation.root,
        "conversation_id": conversation.id,
    }
    heads = [_head(base, served, incoming.heads.state.count, "served", steered.step)]
    choices = list(messages_of(completion))
    if completion is None or not choices:
        conversation.branch = conversation.branch.failed(served)
        return (*heads, *_named(steered, under_way, (), index, base, keep=keep))
    for position, (message, finish) in enumerate(choices):
        echo = echo_of(completion) or [reply_message(message)]
        echoed = extend(incoming.heads.state, echo)
        index.add_head(conversation, echoed.full, served)
        count = echoed.state.count
        heads.append(_head(base, echoed.full, count, reply_kind(served), steered.step))
        if position == 0:
            _take(steered, message, finish, echoed)
            index.owes(conversation)
            heads += _calls_made(conversation, base, count, steered.step)
    name, reply = completion.get(ANSWER_ID), echo_of(completion)
    if name:
        index.keep_items(conversation.tenant, items_by_id(reply))
    return (*heads, *_named(steered, name, reply, index, base, keep=keep))


def _take(steered: Steered, message: Mapping[str, Any], finish: str | None, echoed: Heads) -> None:
    """Make this the conversation's latest reply, which ends its run when it is a final answer."""
    conversation, fold = steered.conversation, steered.conversation.fold
    final = finish == "stop" and fold is not None and fold.peek_final(message)
    idle = final or not _calls(message)
    conversation.branch = conversation.branch.answered(
        steered.recalled.incoming.heads.full,
        _newest(echoed.messages),
        final=idle,
        marks=marks_of(content_text(message.get("content"))) if idle else (),
        calls=sane_calls(echoed.state.call_ids),
    )
    if final:
        steered.state_after = FSMState.END
    if steered.run == conversation.run:
        conversation.ended_run = steered.run if final else None


def _calls_made(
    conversation: Conversation, base: dict[str, Any], position: int, step: int
) -> Iterator[HeadRecord]:
    """Where another gateway finds a run by the calls of its latest reply: one of an agent that
    shortens its history, and sends no id."""
    calls = conversation.branch.reply_calls
    if calls and conversation.base and conversation.external_key is None and is_random(calls):
        head = calls_head(conversation.tenant, calls)
        yield _head({**base, "root": head}, head, position, _CALLS_KIND, step)


def _named(
    steered: Steered,
    name: str | None,
    reply: Sequence[Any],
    index: ConversationIndex,
    base: dict[str, Any],
    *,
    keep: bool,
) -> Iterator[HeadRecord]:
    """The head of an answer that a later request may go on from by its id."""
    conversation, chain = steered.conversation, steered.recalled.incoming.heads.state
    if not name:
        return
    if steered.recorded and name in conversation.answered:
        carried = conversation.answered[name].carried  # later steps may have come before it
    elif conversation.fold is not None:
        carried = conversation.fold.current.carry()
    else:
        return
    answer = answered(name, chain, reply, carried, keep=keep)
    index.add_answer(conversation, answer)
    head = response_head(conversation.tenant, name)
    count = answer.after.count
    yield _head({**base, "root": head}, head, count, RESPONSE_KIND, steered.step)


def _newest(digests: Sequence[bytes | None]) -> bytes | None:
    return next((digest for digest in reversed(digests) if digest is not None), None)


def _head(base: dict[str, Any], digest: bytes, position: int, kind: str, step: int) -> HeadRecord:
    return HeadRecord(**base, digest=digest, position=position, kind=kind, step=step)


def _calls(message: Mapping[str, Any]) -> bool:
    return bool(message.get("tool_calls") or message.get("function_call"))
