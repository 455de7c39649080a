"""Reads a long transcript in parts, between which other requests are served.

A history of thousands of messages is new as a whole to a gateway that was restarted without its
store, or that a client turns to in the middle of its work. What cannot be divided, such as a
message with thousands of calls, is read in a thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from gateway.steering.fold import ConversationFold, RunFold, StepOutcome
from gateway.steering.transcript.user_words import task_of

MESSAGES_AT_ONCE = 64
"""New messages that are read in one go: about 15 ms of processor time for messages of 2 kB."""
_MOST_ON_THE_LOOP = 2**20
"""Characters that are read on the loop in one go: as many take up to 50 ms."""
_CHARACTERS_OF_A_PART = 4096
"""A message, a part of its content and a call take as long as so many characters of text."""
_DEPTH = 3
"""Message, its calls or parts of content, and the function of a call."""
_MOST_CALLS = 128
"""Calls of one step that are scored on the loop: about 10 ms."""


async def fold_transcript(
    fold: ConversationFold, transcript: Sequence[Any]
) -> Sequence[StepOutcome]:
    """The outcomes of the new steps of a transcript, as `ConversationFold.extend` gives them."""
    in_thread, goes_on = False, fold.consumed < len(transcript)
    while goes_on:
        new = transcript[fold.consumed : fold.consumed + MESSAGES_AT_ONCE]
        in_thread = in_thread or sum(map(_weight, new)) > _MOST_ON_THE_LOOP
        in_thread = in_thread or fold.open_calls > _MOST_CALLS
        if in_thread:
            goes_on = await asyncio.to_thread(fold.read_ahead, transcript, MESSAGES_AT_ONCE)
        else:
            goes_on = fold.read_ahead(transcript, MESSAGES_AT_ONCE)
            if goes_on:
                await asyncio.sleep(0)
    starts_over = fold.starts_over and len(transcript) > MESSAGES_AT_ONCE
    if in_thread or starts_over or fold.open_calls > _MOST_CALLS:
        return await asyncio.to_thread(fold.extend, transcript)
    return fold.extend(transcript)


def _weight(message: object, depth: int = _DEPTH) -> int:
    """About how long a message takes to read, in characters of plain text."""
    weight = _CHARACTERS_OF_A_PART
    if not isinstance(message, dict):
        return weight
    for value in message.values():
        if isinstance(value, str):
            weight += len(value)
        elif depth > 1 and isinstance(value, dict):
            weight += _weight(value, depth - 1)
        elif depth > 1 and isinstance(value, list):
            for part in value:
                if isinstance(part, dict):
                    weight += _weight(part, depth - 1)
    return weight


async def tasks_of(runs: Sequence[RunFold], transcript: Sequence[Any]) -> dict[int, str]:
    """What the user asked for in each of these runs, by the index of the run."""
    tasks = {}
    for count, run in enumerate(runs, start=1):
        tasks[run.index] = task_of(transcript, run.start)
        if count % MESSAGES_AT_ONCE == 0:
            await asyncio.sleep(0)
    return tasks
