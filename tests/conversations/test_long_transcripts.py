"""A long transcript is read in parts."""

from __future__ import annotations

import asyncio
from typing import Any

from gateway.conversations.long_transcripts import MESSAGES_AT_ONCE, read_ahead, tasks_of
from gateway.steering.fold import ConversationFold
from gateway.steering.policy import Policy


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
