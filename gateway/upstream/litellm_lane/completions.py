"""Turns LiteLLM's complete answers into completions as OpenAI's API sends them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.wire import toolcalls

Json = dict[str, Any]

# What providers call the end of a turn, where LiteLLM lets it through untranslated.
# Source: stop reasons of Anthropic Messages, Bedrock Converse, Cohere Chat, Gemini.
_FINISH = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "eos": "stop",
    "complete": "stop",
    "tool_use": "tool_calls",
    "tool_call": "tool_calls",
    "max_tokens": "length",
    "model_length": "length",
    "refusal": "content_filter",
    "safety": "content_filter",
}
CUT = frozenset({"length", "content_filter"})
# Tools that ran at the provider: LiteLLM lists them as calls, and an agent would try to run them.
SERVER_CALL = "srvtoolu_"
HEAD_KEYS = frozenset({"id", "object", "created", "model", "choices", "usage", "stream_options"})


def completion(answer: Mapping[str, Any], *, model: str) -> Json:
    """LiteLLM's complete answer as OpenAI's API would give it."""
    out: Json = {key: value for key, value in answer.items() if key in HEAD_KEYS or value}
    out.pop("stream_options", None)
    out["object"] = "chat.completion"
    out["model"] = out.get("model") or model
    out["choices"] = [_clean_choice(choice, str(out.get("id"))) for choice in out["choices"]]
    if isinstance(out.get("usage"), Mapping):
        reasoned = any("reasoning_content" in c["message"] for c in out["choices"])
        out["usage"] = clean_usage(out["usage"], reasoned=reasoned)
    return out


def as_chunk(completion: Mapping[str, Any]) -> Json:
    """A complete answer as the single chunk of a stream."""
    choices = [
        {**{k: v for k, v in choice.items() if k != "message"}, "delta": choice["message"]}
        for choice in completion["choices"]
    ]
    for choice in choices:
        calls = choice["delta"].get("tool_calls") or ()
        for slot, call in enumerate(calls):
            call["index"] = slot
    return {**completion, "choices": choices}


def from_generic(chunk: Mapping[str, Any], *, finished: bool) -> Json | None:
    """LiteLLM's `GenericStreamingChunk` as a chunk; None when there is nothing in it.

    `finished`: a finish reason is known; then the one of an empty end marker is not heeded.
    """
    extras = chunk.get("provider_specific_fields") or {}
    text, call, usage = chunk.get("text"), chunk.get("tool_use"), chunk.get("usage")
    reason = chunk.get("finish_reason") or None
    if reason and finished and not (text or call):
        reason = None
    if not (text or call or usage or reason or extras):
        return None
    delta = {"content": text, "tool_calls": [call] if call else None, **extras}
    choice = {"index": 0, "delta": delta, "finish_reason": reason}
    return {"choices": [choice], "usage": usage}


def clean_usage(usage: Mapping[str, Any], *, reasoned: bool) -> Json:
    """Usage without nulls, and without the zero LiteLLM puts for reasoning nobody counted."""
    out: Json = without_nulls(usage)
    details = out.get("completion_tokens_details")
    if reasoned and details and details.get("reasoning_tokens") == 0:
        details.pop("reasoning_tokens")
        details.pop("text_tokens", None)
        if not details:
            del out["completion_tokens_details"]
    return out


def without_nulls(value: Any) -> Any:
    """A JSON value without the null members of its objects."""
    if isinstance(value, Mapping):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    return value


def finish_of(reason: Any) -> str | None:
    """The finish reason in OpenAI's words; None for none."""
    return _FINISH.get(str(reason).lower(), str(reason)) if reason else None


def drop_doubled_fields(message: Json) -> None:
    """LiteLLM puts thinking blocks both next to the content and into provider fields."""
    fields = message.get("provider_specific_fields")
    if not isinstance(fields, Mapping):
        return
    kept = {k: v for k, v in fields.items() if k not in message and v is not None}
    if kept:
        message["provider_specific_fields"] = kept
    else:
        del message["provider_specific_fields"]


def _clean_choice(choice: Mapping[str, Any], id: str) -> Json:
    message = {key: value for key, value in choice["message"].items() if value or key == "content"}
    drop_doubled_fields(message)
    calls = [
        call
        for call in message.get("tool_calls") or ()
        if not str(call.get("id") or "").startswith(SERVER_CALL)
    ]
    if "tool_calls" in message:
        message["tool_calls"] = calls
    reason = finish_of(choice.get("finish_reason"))
    stem = id.removeprefix("chatcmpl-")
    count = toolcalls.repair_message(
        message, lambda index: f"call_{stem}_{index}", cut=reason in CUT
    )
    rest = {
        key: value
        for key, value in choice.items()
        if key not in ("message", "finish_reason") and value
    }
    return {
        "index": rest.pop("index", 0),
        "message": {"role": "assistant", "content": None, **message},
        **rest,
        "finish_reason": toolcalls.finish_reason(reason, count),
    }
