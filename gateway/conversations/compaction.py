"""Continuing a conversation whose client has rewritten its history: what is kept of its run."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from gateway.conversations.conversation import Conversation, RunStart
from gateway.steering.fold import RunSnapshot
from gateway.steering.fsm import FSMState
from gateway.steering.identity import Incoming
from gateway.wire.messages import is_result


def compact(conversation: Conversation, incoming: Incoming) -> None:
    """Continue with a rewritten history: state, scores, caps and the windows of monitors are kept.

    What the agent did before is not undone by a shorter account of it: one that loops goes on
    looping. The steps that the new history lacks are in the fold, or in the run log. Only after a
    final answer the windows restart, because the next run begins.
    """
    run, history = conversation.run, conversation.history
    snapshot, offset = _kept(conversation, incoming)
    kept = snapshot or (run.start.snapshot if run.start else RunSnapshot())
    logged_in = conversation.id if kept.state is not FSMState.END else ""
    run.start = RunStart(snapshot=kept, offset=offset, logged_in=logged_in)
    if run.fold is not None and logged_in:
        run.fold.continue_in(offset)
    else:
        run.fold = run.kept_fold = None
    # The store keeps prefix hashes by the first message, and this history has a new one.
    history.root = b""
    run.answers.clear()
    run.memory = replace(run.memory, guidance=run.memory.guidance.compacted())


def _kept(conversation: Conversation, incoming: Incoming) -> tuple[RunSnapshot | None, int]:
    """The run so far, and the first message that has not been scored yet."""
    hashes, branch = incoming.hashes, conversation.history.branch
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
    if incoming.summarises(branch):
        snapshot = conversation.snapshot_before_reply()  # a summary, not a final answer
    return snapshot, hashes.state.count


def _newest_reply(conversation: Conversation, incoming: Incoming) -> int | None:
    """The position of the reply to the latest call in a history without results of its calls."""
    hashes, history = incoming.hashes, conversation.history
    digest = history.branch.reply_digest
    if digest is None or digest not in hashes.messages:
        return None
    newest = len(hashes.messages) - 1 - hashes.messages[::-1].index(digest)
    chain = history.chain
    # The chain is that of an earlier request where another gateway has served the latest one.
    latest = chain is not None and chain.digest == history.branch.served_hash
    grown = chain is not None and latest and hashes.state.turns > chain.turns
    if history.branch.reply_calls and not grown and digest in history.seen:
        # An equal reply was seen earlier; if all messages before this one are known, it is that
        # earlier reply.
        return None if _all_seen(conversation, incoming, newest) else newest
    return newest


def _start_of_turn(turns: Sequence[int], position: int) -> int:
    """The first message of the assistant turn that the message at `position` is in or follows.

    A reply may be several items, of which only the newest is known.
    """
    turn = turns[position + 1]
    while position and turns[position] == turn:
        position -= 1
    return position


def _all_seen(conversation: Conversation, incoming: Incoming, count: int) -> bool:
    """Whether each of the first `count` messages was seen before or is a result, which a client may
    have cleared or cut."""
    start = incoming.hashes.start
    return all(
        digest is None
        or digest in conversation.history.seen
        or is_result(incoming.messages[start + position])
        for position, digest in enumerate(incoming.hashes.messages[:count])
    )
