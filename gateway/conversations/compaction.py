"""A conversation whose client has made another history of it: what is kept, what begins anew."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gateway.conversations.memo import Conversation
from gateway.steering.conversation import Incoming
from gateway.steering.fold import Carried
from gateway.steering.fsm import FSMState
from gateway.wire.messages import is_result


def compact(conversation: Conversation, incoming: Incoming) -> None:
    """Go on with a history that the client wrote anew: state, scores and caps stay.

    Repeat windows restart, unless the client only left messages out or cleared old results: then
    the steps behind it are the same as before.
    """
    stands, offset = _carried(conversation, incoming)
    conversation.base = stands or conversation.base
    conversation.base_offset = offset
    if _only_cut(conversation, incoming, offset):
        conversation.base_of = conversation.id
        if conversation.fold is not None:
            conversation.fold.moved(offset)
    else:
        conversation.base_of = ""
        conversation.fold = None
    # The store keeps heads by the history they begin with, and this history has a new beginning.
    conversation.root = b""
    conversation.guidance = conversation.guidance.compacted()


def _carried(conversation: Conversation, incoming: Incoming) -> tuple[Carried | None, int]:
    """Where the run stands, and the first message that has not been scored yet."""
    heads, branch = incoming.heads, conversation.branch
    stands = conversation.stands()
    if branch.owed(incoming):
        return stands, heads.start + _begin_of_turn(heads.turns, len(heads.messages) - 1)
    newest = _newest_reply(conversation, incoming)
    if newest is not None:
        # The reply to the latest call is in the new history, and has not been scored yet.
        if stands is not None and stands.state is FSMState.END:
            # It was a final answer, and ends its run there once more.
            stands = replace(stands, state=FSMState.NORMAL)
        return stands, heads.start + _begin_of_turn(heads.turns, newest)
    if incoming.retells(branch):
        stands = conversation.stood()  # a summary, no final answer
    return stands, heads.state.count


def _newest_reply(conversation: Conversation, incoming: Incoming) -> int | None:
    """Where the reply to the latest call stands in a history that does not answer its calls."""
    heads, branch = incoming.heads, conversation.branch
    if branch.reply_digest is None or branch.reply_digest not in heads.messages:
        return None
    newest = len(heads.messages) - 1 - heads.messages[::-1].index(branch.reply_digest)
    grown = conversation.chain is not None and heads.state.turns > conversation.chain.turns
    if branch.reply_calls and not grown and conversation.heard.knows(branch.reply_digest):
        # What says the same as an earlier one, at the end of what is known, is that one.
        return None if _all_known(conversation, incoming, newest) else newest
    return newest


def _begin_of_turn(turns: Sequence[int], position: int) -> int:
    """The first message of the assistant turn that the message at `position` is in or behind.

    A reply may be several items, of which the newest is the one known.
    """
    turn = turns[position + 1]
    while position and turns[position] == turn:
        position -= 1
    return position


def _only_cut(conversation: Conversation, incoming: Incoming, offset: int) -> bool:
    """Whether all messages before the latest turn are known from earlier requests, but results."""
    owed = conversation.branch.owed(incoming)
    return owed and _all_known(conversation, incoming, offset - incoming.heads.start)


def _all_known(conversation: Conversation, incoming: Incoming, count: int) -> bool:
    """Whether the first `count` messages that were read are known, or bring results: these a client
    may clear or cut."""
    start = incoming.heads.start
    return all(
        digest is None
        or conversation.heard.knows(digest)
        or is_result(incoming.messages[start + position])
        for position, digest in enumerate(incoming.heads.messages[:count])
    )
