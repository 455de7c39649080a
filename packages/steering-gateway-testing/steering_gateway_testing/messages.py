"""Anthropic Messages, streamed and not, and `count_tokens`: replies and errors as bytes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import orjson

from steering_gateway_testing.exchange import ID_MARK, SSE_TYPE, Answer
from steering_gateway_testing.received import ReceivedRequest
from steering_gateway_testing.text import pieces
from steering_gateway_testing.values import Reply, ToolCall, Usage

Block = dict[str, Any]

STOP_REASONS = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "content_filter": "refusal",
}
"""Finish reason in chat terms -> `stop_reason`; others go through as they are."""

BYTES_PER_TOKEN = 4
"""What `count_tokens` divides the request's length by: a round number, not a tokeniser."""


def event(data: dict[str, Any]) -> bytes:
    """One server-sent event named after its `type`."""
    return b"event: %b\ndata: %b\n\n" % (data["type"].encode(), orjson.dumps(data))


def answer(reply: Reply, request: ReceivedRequest) -> Answer:
    """The whole reply, as a JSON body or as stream events."""
    message = {
        "id": reply.id or f"msg_{ID_MARK.decode()}",
        "type": "message",
        "role": "assistant",
        "model": reply.model or request.model or "scripted-model",
        "content": _blocks(reply),
        "stop_reason": STOP_REASONS.get(reply.finish, reply.finish),
        "stop_sequence": None,
        "usage": usage_of(reply.usage or Usage()),
        **reply.message_extra,
        **reply.extra,
    }
    if not request.stream:
        return Answer(pieces=(orjson.dumps(message),))
    events = tuple(map(event, _events(reply, message)))
    return Answer(pieces=events, streamed=True, finish_at=len(events) - 2, content_type=SSE_TYPE)


def count_tokens(request: ReceivedRequest) -> Answer:
    """The length of the request in made-up tokens."""
    tokens = max(1, len(request.body) // BYTES_PER_TOKEN)
    return Answer(pieces=(orjson.dumps({"input_tokens": tokens}),))


def usage_of(usage: Usage) -> dict[str, Any]:
    """The `usage` object of Messages, whose `input_tokens` leave cached tokens out."""
    cached, written = usage.cached_tokens, usage.cache_write_tokens
    return {
        "input_tokens": max(0, usage.prompt_tokens - cached - written),
        "cache_creation_input_tokens": written,
        "cache_read_input_tokens": cached,
        "cache_creation": {"ephemeral_5m_input_tokens": written, "ephemeral_1h_input_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "service_tier": "standard",
    }


def error(status: int, kind: str, code: str | None, message: str) -> bytes:
    """The body of an error answer; Anthropic has no codes."""
    return orjson.dumps({**_error(kind, message), "request_id": f"req_{ID_MARK.decode()}"})


def error_event(kind: str, code: str | None, message: str) -> bytes:
    """An error in the middle of a stream."""
    return event(_error(kind, message))


def _error(kind: str, message: str) -> dict[str, Any]:
    named = "api_error" if kind == "server_error" else kind
    return {"type": "error", "error": {"type": named, "message": message}}


def _blocks(reply: Reply) -> list[Block]:
    blocks: list[Block] = []
    if reply.reasoning:
        thinking = {"thinking": reply.reasoning, "signature": reply.signature}
        blocks.append({"type": "thinking", **thinking})
    if text := reply.content or reply.refusal:
        blocks.append({"type": "text", "text": text})
    for index, call in enumerate(reply.tool_calls):
        call_id = call.id or f"toolu_{ID_MARK.decode()}_{index}"
        blocks.append({"type": "tool_use", "id": call_id, "name": call.name, "input": call.value})
    return blocks


def _events(reply: Reply, message: Block) -> Iterator[Block]:
    usage = message["usage"]
    opening: Block = {"content": [], "stop_reason": None, "usage": {**usage, "output_tokens": 1}}
    yield {"type": "message_start", "message": {**message, **opening}}
    calls = iter(reply.tool_calls)
    for index, block in enumerate(message["content"]):
        empty, deltas = _streamed(block, reply, calls)
        yield {"type": "content_block_start", "index": index, "content_block": empty}
        if index == 0:
            yield {"type": "ping"}
        for delta in deltas:
            yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}
    ending = {"stop_reason": message["stop_reason"], "stop_sequence": None}
    yield {"type": "message_delta", "delta": ending, "usage": usage}
    yield {"type": "message_stop"}


def _streamed(block: Block, reply: Reply, calls: Iterator[ToolCall]) -> tuple[Block, list[Block]]:
    """How a block starts, and the deltas that complete it."""
    match block["type"]:
        case "thinking":
            parts = pieces(block["thinking"], reply.chunks)
            deltas = [{"type": "thinking_delta", "thinking": part} for part in parts]
            deltas.append({"type": "signature_delta", "signature": block["signature"]})
            return {"type": "thinking", "thinking": "", "signature": ""}, deltas
        case "text":
            parts = pieces(block["text"], reply.chunks)
            return {"type": "text", "text": ""}, [{"type": "text_delta", "text": p} for p in parts]
        case _:
            call = next(calls)
            parts = ["", *pieces(call.text, call.fragments)]
            deltas = [{"type": "input_json_delta", "partial_json": part} for part in parts]
            return {**block, "input": {}}, deltas
