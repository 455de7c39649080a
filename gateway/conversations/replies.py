"""The replies that a completion holds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.dialects.base import ECHO


def echo_of(completion: Mapping[str, Any]) -> list[Any]:
    """The items of an answer whose dialect has several for one reply; none for any other."""
    choices = completion["choices"]
    first = choices[0] if len(choices) == 1 else None
    echo = first.get(ECHO) if isinstance(first, Mapping) else None
    return echo if isinstance(echo, list) else []


def messages_of(completion: Mapping[str, Any] | None) -> list[tuple[dict[str, Any], str | None]]:
    """(message, finish reason) of each choice that has a message; none without a completion."""
    choices = completion.get("choices") if completion else None
    found = []
    for choice in choices if isinstance(choices, list) else ():
        message = choice.get("message") if isinstance(choice, Mapping) else None
        if isinstance(message, dict):
            found.append((message, choice.get("finish_reason")))
    return found
