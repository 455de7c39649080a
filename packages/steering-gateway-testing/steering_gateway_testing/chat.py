"""OpenAI chat completions, streamed and not: replies and errors as bytes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import zip_longest
from typing import Any

import orjson

from steering_gateway_testing.exchange import ID_MARK, SSE_TYPE, Answer
from steering_gateway_testing.received import ReceivedRequest
from steering_gateway_testing.text import pieces
from steering_gateway_testing.values import Reply, ToolCall, Usage

CREATED = 1_700_000_000
"""Creation time of every reply, seconds since 1970; fixed: equal scripts give equal bytes."""

DONE = b"data: [DONE]\n\n"

MOST_CHOICES = 128
"""More choices of one request are not made. Source: OpenAI API reference, `n`."""


def event(data: Any) -> bytes:
    """One unnamed server-sent event."""
    return b"data: " + orjson.dumps(data) + b"\n\n"


def options(request: ReceivedRequest) -> tuple[Any, ...]:
    """What else of the request shapes the bytes of an answer: n, usage chunk, logprobs."""
    fields = request.fields
    stream_options = fields.get("stream_options")
    wants_usage = isinstance(stream_options, dict) and stream_options.get("include_usage") is True
    return (_choices_wanted(fields.get("n")), wants_usage, fields.get("logprobs") is True)


def answer(reply: Reply, request: ReceivedRequest) -> Answer:
    """The whole reply, as a JSON body or as stream events."""
    count, wants_usage, logprobs = options(request)
    choices = _choices(reply, count)
    head = _head(reply, request)
    if not request.stream:
        body = {**head, "object": "chat.completion"}
        body["choices"] = [_choice(c, i, logprobs) for i, c in enumerate(choices)]
        if reply.usage:
            body["usage"] = usage_of(reply.usage)
        return Answer(pieces=(orjson.dumps({**body, **reply.extra}),))
    head = {**head, "object": "chat.completion.chunk"}
    if wants_usage and reply.usage:
        head["usage"] = None
    head |= reply.extra
    deltas = [d for i, c in enumerate(choices) for d in _chunks(c, i, logprobs)]
    ends = [_delta(i, {}, c.finish) for i, c in enumerate(choices)]
    events = [event({**head, "choices": [d]}) for d in (*deltas, *ends)]
    if wants_usage and reply.usage:
        events.append(event({**head, "choices": [], "usage": usage_of(reply.usage)}))
    return Answer(
        pieces=(*events, DONE), streamed=True, finish_at=len(deltas), content_type=SSE_TYPE
    )


def usage_of(usage: Usage) -> dict[str, Any]:
    """The `usage` object of chat completions."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens, "audio_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }


def error(status: int, kind: str, code: str | None, message: str) -> bytes:
    """The body of an error answer."""
    detail = {"message": message, "type": kind, "param": None, "code": code}
    return orjson.dumps({"error": detail})


def error_event(kind: str, code: str | None, message: str) -> bytes:
    """An error in the middle of a stream."""
    return b"data: " + error(500, kind, code, message) + b"\n\n"


def _head(reply: Reply, request: ReceivedRequest) -> dict[str, Any]:
    return {
        "id": reply.id or f"chatcmpl-{ID_MARK.decode()}",
        "object": "",
        "created": CREATED,
        "model": reply.model or request.model or "scripted-model",
        "service_tier": "default",
        "system_fingerprint": "fp_scripted",
    }


def _choices(reply: Reply, count: int) -> list[Reply]:
    choices = [reply, *reply.alternatives]
    return choices + [reply] * (count - len(choices))


def _choice(reply: Reply, index: int, logprobs: bool) -> dict[str, Any]:
    message: dict[str, Any] = {
        "role": "assistant",
        "content": reply.content,
        "refusal": reply.refusal,
        "annotations": [],
    }
    if reply.reasoning:
        message["reasoning_content"] = reply.reasoning
    if reply.tool_calls:
        message["tool_calls"] = [_call(c, index, i) for i, c in enumerate(reply.tool_calls)]
    return {
        "index": index,
        "message": {**message, **reply.message_extra},
        "logprobs": _logprobs(pieces(reply.content or "", reply.chunks)) if logprobs else None,
        "finish_reason": reply.finish,
    }


def _chunks(reply: Reply, index: int, logprobs: bool) -> Iterator[dict[str, Any]]:
    first = {"role": "assistant", "content": None if reply.tool_calls else "", "refusal": None}
    yield _delta(index, {**first, **reply.message_extra})
    for piece in pieces(reply.reasoning, reply.chunks):
        yield _delta(index, {"reasoning_content": piece})
    for piece in pieces(reply.content or "", reply.chunks):
        yield _delta(index, {"content": piece}, logprobs=_logprobs([piece]) if logprobs else None)
    for piece in pieces(reply.refusal or "", reply.chunks):
        yield _delta(index, {"refusal": piece})
    calls = [_call_deltas(c, index, i) for i, c in enumerate(reply.tool_calls)]
    order = zip_longest(*calls) if reply.interleave else calls
    for group in order:
        yield from (_delta(index, {"tool_calls": [part]}) for part in group if part)


def _delta(
    index: int, delta: Mapping[str, Any], finish: str | None = None, *, logprobs: Any = None
) -> dict[str, Any]:
    return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish}


def _call(call: ToolCall, choice: int, index: int) -> dict[str, Any]:
    call_id = call.id or f"call_{ID_MARK.decode()}_{choice}_{index}"
    function = {"name": call.name, "arguments": call.text}
    return {"id": call_id, "type": "function", "function": function}


def _call_deltas(call: ToolCall, choice: int, index: int) -> list[dict[str, Any]]:
    opening = _call(call, choice, index)
    opening["function"] = {"name": call.name, "arguments": ""}
    fragments = pieces(call.text, call.fragments)
    rest = [{"index": index, "function": {"arguments": part}} for part in fragments]
    return [{"index": index, **opening}, *rest]


def _logprobs(tokens: list[str]) -> dict[str, Any]:
    return {"content": [_logprob(token) for token in tokens], "refusal": None}


def _logprob(token: str) -> dict[str, Any]:
    entry = {"token": token, "logprob": -0.25, "bytes": list(token.encode())}
    return {**entry, "top_logprobs": [entry]}


def _choices_wanted(value: Any) -> int:
    whole = isinstance(value, int) and not isinstance(value, bool) and value > 0
    return min(value, MOST_CHOICES) if whole else 1
