"""One conversation saved by two gateways: a fold that goes on sees what was joined."""

from __future__ import annotations

from typing import Any

from gateway.conversations.conversation import Conversation, CurrentRun
from gateway.conversations.loading import merge
from gateway.steering.policy import Policy
from tests.conversations.test_priors import a_conversation

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
