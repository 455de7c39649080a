"""A long transcript is read in parts."""

from __future__ import annotations

import asyncio
import os
from typing import Any

from gateway.conversations.conversation import SeenDigests
from gateway.conversations.long_transcripts import MESSAGES_AT_ONCE, read_ahead, tasks_of
from gateway.steering.fold import ConversationFold
from gateway.steering.policy import Policy
from gateway.wire.views import MessagesView
from tests.hostile.growth import LIMIT, cost


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
    await read_ahead(fold, messages)
    of_reading = turns
    outcomes = fold.extend(messages)
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
