"""The system and user messages of a request, which are recorded next to its steps."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from gateway.steering.transcript.steps import Step
from gateway.stores.records import PromptMessage
from gateway.wire.coerce import as_mapping, as_text
from gateway.wire.messages import SYSTEM_ROLES, content_text, is_result

MOST_MESSAGES = 512
"""Messages in a row that are read for what they say: results of so many calls come at once, and no
client writes as many. Each takes some 2 us."""
_ROLES = (*SYSTEM_ROLES, "user")


def opening_prompts(
    body: Mapping[str, Any], transcript: Sequence[Any], start: int
) -> list[PromptMessage]:
    """The opening of a run: the system prompt, then the messages before its first reply.

    `start` is the index of the run's first message.
    """
    separate = [content_text(body.get(key)) for key in ("system", "instructions")]
    lead = islice(transcript, min(start, MOST_MESSAGES))
    opening = [PromptMessage(role="system", text=text) for text in separate if text]
    opening += _read(_until(lead, lambda message: _role(message) not in SYSTEM_ROLES))
    own = (transcript[at] for at in range(start, min(start + MOST_MESSAGES, len(transcript))))
    opening += _read(_until(own, _is_reply))
    return opening


def later_prompts(transcript: Sequence[Any], latest: Step | None) -> list[PromptMessage]:
    """The system and user messages since the last reply.

    A user message with the results of calls that an agent wrote into its text belongs to the step
    `latest` and is left out.
    """
    since: list[Any] = []
    newest = len(transcript) - 1
    for position in range(newest, max(newest - MOST_MESSAGES, -1), -1):
        if _is_reply(transcript[position]):
            break
        since.append(transcript[position])
    since.reverse()
    found = list(_read(since))
    if latest is None or any(map(is_result, since)):
        return found
    results = [action.observation.strip() for action in latest.actions if action.observation]
    return [item for item in found if not any(result in item.text for result in results)]


def _read(messages: Iterable[Any]) -> Iterator[PromptMessage]:
    for message in messages:
        role = _role(message)
        text = content_text(message.get("content")) if role in _ROLES else ""
        if text:
            yield PromptMessage(role=role, text=text)


def _until(messages: Iterable[Any], ends: Any) -> Iterator[Any]:
    for message in messages:
        if ends(message):
            return
        yield message


def _role(message: Any) -> str:
    return as_text(as_mapping(message).get("role"), "")


def _is_reply(message: Any) -> bool:
    return _role(message) == "assistant" or _kind(message).endswith("_call")


def _kind(message: Any) -> str:
    return as_text(as_mapping(message).get("type"), "")
