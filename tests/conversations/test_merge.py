"""One conversation saved by two gateways: a fold that goes on sees what was joined."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from gateway.conversations.codec import to_record
from gateway.conversations.conversation import Conversation, CurrentRun
from gateway.conversations.loading import merge, merged_call
from gateway.core.decision_settings import Policy
from gateway.core.fold import RunSnapshot
from gateway.core.fsm import FSMState
from gateway.steering.identity import child_id, conversation_id
from gateway.stores.records import CallRecord, RunUpdate, StepRow
from tests.conversations.test_choices import a_conversation

_CALL = {"id": "c", "type": "function", "function": {"name": "bash", "arguments": "{}"}}


def asked_again(answers: list[int]) -> tuple[Conversation, list[dict[str, Any]]]:
    """A conversation whose second message may be a final answer, and a request that goes on."""
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": "fix it"},
        {"role": "assistant", "content": "Done."},
        {"role": "system", "content": "now the other one"},
        {"role": "assistant", "content": "", "tool_calls": [_CALL]},
        {"role": "tool", "tool_call_id": "c", "content": "ok"},
    ]
    return a_conversation(CurrentRun(answers=answers)), messages


def runs(conversation: Conversation, messages: list[dict[str, Any]], *, joined: list[int]) -> int:
    """How many runs a fold counts that was begun before the call was joined with a stored one."""
    run = conversation.run
    fold = run.ready_fold(Policy())
    fold.extend(messages[:1])
    merge(conversation, a_conversation(CurrentRun(answers=joined)), tokens=0)
    assert run.fold is fold
    fold.extend(messages)
    return len(fold.runs)


def test_answers_of_another_gateway_end_runs_of_a_fold_that_goes_on() -> None:
    """As they do in a fold that is begun after it."""
    assert runs(*asked_again([]), joined=[]) < runs(*asked_again([]), joined=[2])


_NAME = conversation_id("tenant", "session")


def of_agent(task: str, role: bytes, source: str = "header:x-session-id") -> Conversation:
    """A served conversation under an id, of an agent with this task and role."""
    found = a_conversation(CurrentRun())
    found.id = _NAME
    found.source = source
    found.history.branch = replace(
        found.history.branch,
        conversation_id=_NAME,
        served_hash=b"h",
        task=task.encode(),
        signature=role,
    )
    return found


@pytest.mark.parametrize(
    ("own", "stored", "same"),
    [
        (of_agent("a", b"x"), of_agent("a", b"x"), True),
        (of_agent("a", b"x"), of_agent("a", b"y"), True),
        (of_agent("a", b"x"), of_agent("b", b"x"), False),
        # An id that names one conversation: its client has rewritten the history.
        (
            of_agent("a", b"x", "header:x-conversation-id"),
            of_agent("b", b"x", "header:x-conversation-id"),
            True,
        ),
        (
            of_agent("a", b"x", "header:x-conversation-id"),
            of_agent("b", b"y", "header:x-conversation-id"),
            False,
        ),
        (of_agent("", b"x"), of_agent("b", b"x"), True),  # of a version that did not note tasks
    ],
)
def test_another_agent_under_one_name_is_not_joined(
    own: Conversation, stored: Conversation, same: bool
) -> None:
    """Its waiting call becomes one of a branch, the same in every gateway; nothing else of it
    changes."""
    stored.unsaved.version = 3
    call = CallRecord(
        conversation=to_record(own, 1, 0.0),
        runs=(RunUpdate(id=f"{_NAME}.0", started_at=0.0, updated_at=0.0),),
        steps=(StepRow(run_id=f"{_NAME}.0", step_index=0, at=0.0, state="INIT"),),
    )
    found = merged_call(call, to_record(stored, 1, 0.0))
    name = _NAME if same else child_id(_NAME, own.history.branch.task)
    assert found.conversation.id == name
    assert found.conversation.parent_id == (None if same else _NAME)
    assert found.conversation.version == (3 if same else 0)
    assert [run.id for run in found.runs] == [f"{name}.0"]
    assert [step.run_id for step in found.steps] == [f"{name}.0"]


@pytest.mark.parametrize(
    ("state", "before"), [(FSMState.SLOW, FSMState.SLOW), (FSMState.END, FSMState.FAST)]
)
def test_the_run_before_its_latest_reply_is_known_without_its_transcript(
    state: FSMState, before: FSMState
) -> None:
    """As it was stored; a run that its final answer ended has the state from before that."""
    conversation = a_conversation(CurrentRun())
    stored = RunSnapshot(run=2, state=state, history=(0.5,), steps=3)
    conversation.stored(1, stored)
    conversation.unsaved.state_before_end = FSMState.FAST
    assert conversation.snapshot_before_reply() == replace(stored, state=before)
