"""One conversation saved by two gateways: what each knows of it is joined.

Rows of the log are added to those that are stored. Of the state, what a gateway injected cannot be
derived again: without it the next request would lose guidance that the model has read, and the same
advice would be given twice. The rest is that of the gateway that is further.
"""

from __future__ import annotations

from msgspec.structs import replace

from gateway.conversations.codec import from_record, to_record
from gateway.conversations.conversation import MAX_ANSWERS, Conversation
from gateway.conversations.stored_responses import KEPT_PER_CONVERSATION
from gateway.stores.records import CallRecord, ConversationRecord


def merge(conversation: Conversation, stored: Conversation, *, tokens: int) -> None:
    """Join what is stored of a conversation by now into the one in memory, to be saved over it.

    `tokens`: of the call that is being saved, which the stored run does not count.
    """
    behind = _progress(stored) > _progress(conversation)
    responses = stored.history.responses | conversation.history.responses
    newest = list(responses)[-KEPT_PER_CONVERSATION:]
    conversation.history.responses = {name: responses[name] for name in newest}
    run, theirs = conversation.run, stored.run
    if run.index == theirs.index:
        further = (theirs if behind else run).memory
        run.memory = run.memory.merged(theirs.memory, further=further, tokens=tokens)
        run.priors |= theirs.priors  # what was stored first decided the run
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
    replacing = replace(own, version=stored.version)
    try:
        conversation = from_record(own)
        merge(conversation, from_record(stored), tokens=_tokens(call))
        merged = to_record(conversation, own.message_count, max(own.updated_at, stored.updated_at))
    except ValueError:  # one of them cannot be read: then the newer one stays
        merged = replacing
    return replace(call, conversation=merged)


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
    own, theirs = conversation.unsaved, stored.unsaved
    own.snapshot, own.ended_run = theirs.snapshot, theirs.ended_run
    own.state_before_end = theirs.state_before_end
    conversation.forget_transcript()


def _tokens(call: CallRecord) -> int:
    calls = [step.call for step in call.steps if step.call is not None]
    return sum((made.input_tokens or 0) + (made.output_tokens or 0) for made in calls)
