"""Prepares messages so that LiteLLM translates them without loss or error. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

# LiteLLM appends Gemini's signature of a call to the call's id; other providers refuse such ids.
_SIGNATURE_MARK = "__thought__"


def translatable(messages: Sequence[Any], *, keep_signatures: bool) -> list[Any]:
    """The messages, repaired in place.

    `keep_signatures`: the provider is the one that put them into the ids of the calls.
    """
    for message in messages:
        if not isinstance(message, dict):
            continue
        for block in message.get("thinking_blocks") or ():
            if isinstance(block, dict):
                # The index is ours, for clients that join stream deltas; the provider refuses it.
                block.pop("index", None)
        for call in message.get("tool_calls") or ():
            if isinstance(call, dict):
                _put_call_right(call, keep_signatures=keep_signatures)
        if not keep_signatures:
            _cut_signature(message, "tool_call_id")
    return list(messages)


def without_empty_turns(messages: Sequence[Any]) -> list[Any]:
    """The messages without assistant turns in which nothing was said or done.

    Agents echo them; other wires refuse empty text, and LiteLLM would put its own sentence
    into the conversation.
    """
    return [message for message in messages if not _is_empty_turn(message)]


def lacks_thinking(messages: Sequence[Any]) -> bool:
    """Whether the newest tool-calling turn came back without its signed thinking.

    Clients that know OpenAI's fields only do not echo it, and Anthropic refuses to think on after a
    tool call whose thinking is missing; without thinking the same request is accepted.
    """
    for message in reversed(messages):
        if not isinstance(message, Mapping) or message.get("role") == "user":
            return False
        if message.get("role") == "assistant" and message.get("tool_calls"):
            return not message.get("thinking_blocks")
    return False


def copied(value: Any) -> Any:
    """A deep copy of parsed JSON, an order of magnitude cheaper than `copy.deepcopy`."""
    try:
        return orjson.loads(orjson.dumps(value))
    except (TypeError, ValueError):  # integers above 64 bits, lone surrogates
        return json.loads(json.dumps(value))


def _is_empty_turn(message: Any) -> bool:
    if not isinstance(message, Mapping) or message.get("role") != "assistant":
        return False
    kept = ("content", "tool_calls", "function_call", "thinking_blocks", "audio", "refusal")
    return not any(message.get(key) for key in kept)


def _put_call_right(call: dict[str, Any], *, keep_signatures: bool) -> None:
    function = call.get("function")
    if isinstance(function, dict):
        function["arguments"] = _json_object(function.get("arguments"))
    if not keep_signatures:
        _cut_signature(call, "id")


def _cut_signature(holder: dict[str, Any], key: str) -> None:
    id = holder.get(key)
    if isinstance(id, str) and _SIGNATURE_MARK in id:
        holder[key] = id.partition(_SIGNATURE_MARK)[0]


def _json_object(arguments: Any) -> Any:
    """Arguments that parse as an object, which is all other wires can carry.

    A model's broken arguments are echoed by agents together with the tool's complaint about them;
    they are kept under one key so that the model sees what it wrote.
    """
    if not isinstance(arguments, str):
        return arguments if arguments is not None else "{}"
    try:
        if isinstance(orjson.loads(arguments), dict):
            return arguments
    except ValueError:
        pass
    return json.dumps({"arguments": arguments}) if arguments.strip() else "{}"
