"""The system and user messages of a request, which are recorded next to its steps."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from gateway.steering.transcript.step import Step
from gateway.stores.records import PromptMessage
from gateway.wire.coerce import as_mapping, as_text
from gateway.wire.messages import SYSTEM_ROLES, content_text, is_result

_ROLES = (*SYSTEM_ROLES, "user")


def opening_prompts(
    body: Mapping[str, Any], transcript: Sequence[Any], start: int
) -> list[PromptMessage]:
    """The opening of a run: the system prompt, then the messages before its first reply.

    `start` is the index of the run's first message.
    """
    separate = [content_text(body.get(key)) for key in ("system", "instructions")]
    lead = transcript[:start] if start else ()
    opening = [PromptMessage(role="system", text=text) for text in separate if text]
    opening += _read(_until(lead, lambda message: _role(message) not in SYSTEM_ROLES))
    opening += _read(_until(transcript[start:], _is_reply))
    return opening


def later_prompts(transcript: Sequence[Any], latest: Step | None) -> list[PromptMessage]:
    """The system and user messages since the last reply.

    A user message with the results of calls that an agent wrote into its text belongs to the step
    `latest` and is left out.
    """
    since: list[Any] = []
    for position in range(len(transcript) - 1, -1, -1):
        if _is_reply(transcript[position]):
            break
        since.insert(0, transcript[position])
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
