"""A long transcript is read in parts."""

from __future__ import annotations

import asyncio
import os
import threading
from typing import Any

import pytest

from gateway.conversations.conversation import SeenDigests
from gateway.conversations.observe import (
    MESSAGES_AT_ONCE,
    fold_transcript,
    later_messages,
    opening_prompts,
    prompts_in,
    tasks_of,
)
from gateway.core.decision_settings import Policy
from gateway.core.fold import RunFold, StepOutcome
from gateway.core.step import Step
from gateway.steering.identity import read_request
from gateway.steering.identity.rebuilt import with_tails
from gateway.steering.runs_of_transcript import ConversationFold
from gateway.wire.body_prefix import MessagesView
from gateway.wire.prefix_hash import extend, start_state
from steering_gateway_testing.growth import LIMIT, cost


def _dialogue(turns: int) -> list[dict[str, Any]]:
    said = [{"role": "user", "content": f"Do part {n}."} for n in range(turns)]
    done = [{"role": "assistant", "content": f"Part {n} is done."} for n in range(turns)]
    return [message for pair in zip(said, done, strict=True) for message in pair]


async def test_others_run_between_the_parts() -> None:
    """And the fold gives what it gives at once."""
    messages, turns = _dialogue(5 * MESSAGES_AT_ONCE), 0

    async def other() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    beside = asyncio.ensure_future(other())
    fold, at_once = ConversationFold(Policy()), ConversationFold(Policy())
    outcomes = await fold_transcript(fold, messages)
    of_reading = turns
    tasks = await tasks_of(fold.runs, messages)
    beside.cancel()
    assert of_reading >= 5  # ten parts
    assert turns - of_reading >= 5  # 320 runs
    assert outcomes == at_once.extend(messages)
    assert tasks[7] == "Do part 7."


class _Counted(MessagesView):
    """A transcript that counts how often a message of it is read."""

    def __init__(self, messages: list[Any]) -> None:
        self._messages, self.reads = messages, 0

    def __len__(self) -> int:
        return len(self._messages)

    def at(self, index: int) -> Any:
        self.reads += 1
        return self._messages[index]


async def test_the_tasks_of_many_runs_are_found_by_reading_few_messages() -> None:
    """Also when no message says a word: else a body of 3 MB takes a minute."""
    for words in ("Do it.", ""):
        pair = [{"role": "user", "content": words}, {"role": "assistant", "content": "Done."}]
        messages = pair * 1000
        fold = ConversationFold(Policy())
        fold.extend(messages)
        transcript = _Counted(messages)
        tasks = await tasks_of(fold.runs, transcript)
        assert (len(tasks), set(tasks.values())) == (len(fold.runs), {words})
        assert transcript.reads <= 64 * len(fold.runs)


def test_digests_of_a_long_history_are_added_in_linear_time() -> None:
    """Those of 20,000 messages took a second while each was looked for in all before it."""
    small, large = ([os.urandom(16) for _ in range(size)] for size in (8_000, 32_000))
    assert cost(lambda: SeenDigests().add(large), 3) < LIMIT * cost(
        lambda: SeenDigests().add(small), 3
    )
    seen = SeenDigests()
    seen.add([*small, None, *small])
    assert all(digest in seen for digest in small)
    assert large[0] not in seen


def _many_calls(calls: int) -> list[dict[str, Any]]:
    """One step with this many calls and their results."""
    made = [
        {"id": f"call_{n}", "type": "function", "function": {"name": "read", "arguments": "{}"}}
        for n in range(calls)
    ]
    results = [
        {"role": "tool", "tool_call_id": f"call_{n}", "content": f"Line {n}."} for n in range(calls)
    ]
    asked = {"role": "user", "content": "Read all."}
    return [asked, {"role": "assistant", "content": None, "tool_calls": made}, *results]


def _long_text() -> list[dict[str, Any]]:
    asked, calling, result = _many_calls(1)
    return [asked, {**calling, "content": "I read on. " * 120_000}, result]


@pytest.mark.parametrize(
    "messages",
    [_many_calls(500), _long_text(), [*_many_calls(500), *_dialogue(200)]],
    ids=["calls", "text", "calls-first"],
)
async def test_what_cannot_be_divided_is_read_in_a_thread(
    monkeypatch: pytest.MonkeyPatch, messages: list[dict[str, Any]]
) -> None:
    """A step of many calls, or a long text; the fold gives the same."""
    threads: set[int] = set()
    push = RunFold.push

    def noted(self: RunFold, step: Step) -> StepOutcome:
        if len(step.actions) > 100 or len(step.thought) > 2**20:
            threads.add(threading.get_ident())
        return push(self, step)

    monkeypatch.setattr(RunFold, "push", noted)
    outcomes = await fold_transcript(ConversationFold(Policy()), messages)
    assert threads
    assert threading.get_ident() not in threads
    assert outcomes == ConversationFold(Policy()).extend(messages)


async def test_a_long_transcript_that_is_read_again_is_read_in_a_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A result that comes late changes a step that was scored: all is folded from the start."""
    messages = [*_dialogue(100), *_many_calls(2)]
    fold = ConversationFold(Policy())
    await fold_transcript(fold, messages[:-1])
    threads: list[int] = []
    extend = ConversationFold.extend

    def noted(self: ConversationFold, read: Any) -> Any:
        threads.append(threading.get_ident())
        return extend(self, read)

    monkeypatch.setattr(ConversationFold, "extend", noted)
    again = await fold_transcript(fold, messages)
    assert threads != [threading.get_ident()]
    assert again[-1] == ConversationFold(Policy()).extend(messages)[-1]


async def test_a_few_new_messages_are_read_where_requests_are_served() -> None:
    """A thread for each call would cost more than it takes."""
    fold, messages = ConversationFold(Policy()), _dialogue(300)
    await fold_transcript(fold, messages[:-2])
    before = threading.active_count()
    assert await fold_transcript(fold, messages) == []
    assert threading.active_count() == before


def test_prompts_of_a_long_history_are_found_by_reading_few_messages() -> None:
    """The last of thousands of runs does not cause all messages before it to be parsed again."""
    transcript = _Counted([{"role": "user", "content": "Go on."}] * 5000)
    found = opening_prompts({}, transcript, 4990)
    assert [prompt.text for prompt in found] == ["Go on."] * 10
    assert transcript.reads <= 20
    assert (
        len(opening_prompts({}, transcript, 0))
        == len(prompts_in(later_messages(transcript, None)))
        == 512
    )


def test_results_of_one_turn_are_digested_in_linear_time() -> None:
    """Those of 12,000 calls took seconds while each was looked for among all ids."""
    small, large = _many_calls(4000), _many_calls(16_000)
    assert cost(lambda: extend(start_state("t"), large), 3) < LIMIT * cost(
        lambda: extend(start_state("t"), small), 3
    )


def test_a_tail_hash_that_was_made_beforehand_is_the_same() -> None:
    """For a whole history, and for one that goes on from a known part."""
    messages = _dialogue(50)
    for resume, tail in ((None, b""), (extend(start_state("t"), messages[:40]).state, b"t" * 16)):
        plain = read_request({}, {"messages": messages}, "t", resume=resume)
        made = with_tails(plain, tail)
        assert plain.hashes.tails is None
        assert made.hashes.tails is not None
        for (start, first, last), known in made.hashes.tails.items():
            assert plain.hashes.tail(start, first, last) == known
        assert (tail, 0, len(plain.hashes.messages)) in made.hashes.tails
