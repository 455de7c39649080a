"""Recorded runs, and where they stood at each call."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gateway.core.decision_settings import Policy
from gateway.core.fold import StepOutcome
from gateway.steering.runs_of_transcript import ConversationFold

Run = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One model call of a run: what the client sent, and what was known then.

    `new` = steps scored since the call before; `latest` = the newest scored step of the current
    user request, None on its first call; `recent` = its newest steps, oldest first.
    """

    messages: Sequence[Mapping[str, Any]]
    request: int
    new: tuple[StepOutcome, ...]
    latest: StepOutcome | None
    recent: tuple[StepOutcome, ...]
    tools: tuple[str, ...]


def read(path: Path) -> list[Run]:
    """The runs of a JSONL file, gzipped or not."""
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def calls(run: Run, policy: Policy) -> Iterator[Call]:
    """The calls of a recorded run, in order: one before each assistant message."""
    fold = ConversationFold(policy)
    messages = run["messages"]
    made = [call for message in messages for call in message.get("tool_calls") or ()]
    tools = tuple(dict.fromkeys(call["function"]["name"] for call in made))
    for index, message in enumerate(messages):
        if message["role"] != "assistant" or not index:
            continue
        new = tuple(fold.extend(messages[:index]))
        current = fold.current
        recent = tuple(current.outcomes)[-5:]
        yield Call(
            messages=messages[:index],
            request=current.index,
            new=new,
            latest=recent[-1] if recent else None,
            recent=recent,
            tools=tools,
        )
