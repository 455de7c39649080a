"""The question that only the laboratory asks about calls: whether a stretch of them is trouble."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.core.step import Action
from gateway.features.learning.reader.questions import DATA, Question, one_line
from gateway.text.secrets import mask_secrets

MOST_CALLS = 12  # of a stretch that are shown, the newest
_CALL_CHARACTERS = 200  # of a call's arguments, and of its result


def _trouble(answer: str) -> str | None:
    word = one_line(answer).strip(".`\"'*").lower()
    if word in ("yes", "no"):
        return word
    return None


TROUBLE = Question(
    name="trouble",
    version=1,
    instruction=f"{DATA} `alarm` says why a monitor takes an agent to be stuck, `calls` are the "
    "agent's newest calls with the beginning of each result, the oldest first. Is the agent in "
    "trouble: does it do again what can neither succeed nor bring anything new? Polling a job that "
    "is on its way, reading different things, and calls that get on step by step are no trouble. "
    "Answer with yes or no and nothing else.",
    read=_trouble,
)


def shown_calls(alarm: str, actions: Sequence[Action]) -> dict[str, str]:
    """The data of the question about an alarm's stretch, cut and with secrets masked."""
    lines = []
    for action in actions[-MOST_CALLS:]:
        called, result = (
            mask_secrets(text[: 2 * _CALL_CHARACTERS])[:_CALL_CHARACTERS]
            for text in (action.arguments, action.observation)
        )
        lines.append(f"{action.name} {called} -> {result}")
    return {"alarm": mask_secrets(alarm), "calls": "\n".join(lines)}
