"""Reads a long transcript in parts, between which other requests are served.

A history of thousands of messages is new as a whole to a gateway that was restarted without its
store, or that a client turns to in the middle of its work.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from gateway.steering.fold import ConversationFold, RunFold
from gateway.steering.transcript.user_words import task_of

MESSAGES_AT_ONCE = 64
"""New messages that are read in one go: about 15 ms of processor time for messages of 2 kB."""


async def read_ahead(fold: ConversationFold, transcript: Sequence[Any]) -> None:
    """Read all new messages but the last part, which `ConversationFold.extend` reads."""
    for _ in range(0, len(transcript), MESSAGES_AT_ONCE):
        if not fold.read_ahead(transcript, MESSAGES_AT_ONCE):
            return
        await asyncio.sleep(0)


async def tasks_of(runs: Sequence[RunFold], transcript: Sequence[Any]) -> dict[int, str]:
    """What the user asked for in each of these runs, by the index of the run."""
    tasks = {}
    for count, run in enumerate(runs, start=1):
        tasks[run.index] = task_of(transcript, run.start)
        if count % MESSAGES_AT_ONCE == 0:
            await asyncio.sleep(0)
    return tasks
