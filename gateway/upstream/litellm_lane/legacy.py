"""Converts the form before tools (`functions`, `function_call`) to the present one and back. Pure.

LiteLLM leaves the old fields out for most providers, and gives a call and its result different ids.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Json = dict[str, Any]

_OLD_FIELDS = ("functions", "function_call")


def is_legacy(body: Mapping[str, Any]) -> bool:
    """Whether the client speaks the old form and wants its answer in it."""
    return bool(body.get("functions")) and not body.get("tools")


def modernised(body: Mapping[str, Any]) -> Json:
    """The body with tools instead of functions, also in its history."""
    out: Json = {key: value for key, value in body.items() if key not in _OLD_FIELDS}
    out["tools"] = [{"type": "function", "function": f} for f in body["functions"]]
    choice = body.get("function_call")
    if isinstance(choice, Mapping):
        out["tool_choice"] = {"type": "function", "function": dict(choice)}
    elif choice:
        out["tool_choice"] = choice
    messages, count = [], 0
    for message in body.get("messages") or ():
        if not isinstance(message, Mapping):
            messages.append(message)
            continue
        rest = {key: value for key, value in message.items() if key != "function_call"}
        if message.get("function_call"):
            count += 1
            call = {"id": _id(count), "type": "function", "function": message["function_call"]}
            rest["tool_calls"] = [call]
        if message.get("role") == "function":
            rest = {"role": "tool", "tool_call_id": _id(count), "content": message.get("content")}
        messages.append(rest)
    out["messages"] = messages
    return out


def as_legacy(answer: Mapping[str, Any]) -> Json:
    """A completion or a chunk with its first tool call as `function_call`."""
    return {**answer, "choices": [_choice(choice) for choice in answer["choices"]]}


def _choice(choice: Mapping[str, Any]) -> Json:
    out = dict(choice)
    if out.get("finish_reason") == "tool_calls":
        out["finish_reason"] = "function_call"
    for part in ("message", "delta"):
        calls = out.get(part, {}).get("tool_calls")
        if calls:
            rest = {key: value for key, value in out[part].items() if key != "tool_calls"}
            # The old form has one call a turn; in a stream its deltas have the index 0.
            first = next((call for call in calls if call.get("index", 0) == 0), None)
            out[part] = rest if first is None else {**rest, "function_call": first["function"]}
    return out


def _id(count: int) -> str:
    return f"call_function_{count}"
