"""Gemini's generateContent, as a body, as events and as a streamed array: replies and errors.

Below `/v1internal` all of it is in the envelopes of Code Assist."""

from __future__ import annotations

from typing import Any

import orjson

from steering_gateway_testing.exchange import ID_MARK, SSE_TYPE, Answer
from steering_gateway_testing.received import ReceivedRequest
from steering_gateway_testing.text import pieces
from steering_gateway_testing.values import Reply, Usage

FINISH_REASONS = {
    "stop": "STOP",
    "length": "MAX_TOKENS",
    "tool_calls": "STOP",
    "content_filter": "SAFETY",
}
"""Finish reason in chat terms -> `finishReason`; others go through as they are."""


def answer(reply: Reply, request: ReceivedRequest) -> Answer:
    """The whole reply, or its chunks: events with `alt=sse`, else the elements of an array."""
    head = {
        "modelVersion": reply.model or model_of(request) or "scripted-model",
        "responseId": reply.id or ID_MARK.decode(),
    }
    usage = usage_of(reply.usage or Usage())
    finish = FINISH_REASONS.get(reply.finish, reply.finish)
    if not streams(request):
        whole = _chunk(_parts(reply, 1), usage, finish) | head
        return Answer(pieces=(_encoded({**whole, **reply.extra}, request),))
    *first, last = _parts(reply, reply.chunks) or [{"text": ""}]
    chunks = [_chunk([part], usage, None) | head for part in first]
    chunks.append(_chunk([last], usage, finish) | head)
    encoded = [_encoded(chunk, request) for chunk in chunks]
    if "alt=sse" in request.query:
        events = tuple(b"data: %b\r\n\r\n" % chunk for chunk in encoded)
        return Answer(
            pieces=events, streamed=True, finish_at=len(events) - 1, content_type=SSE_TYPE
        )
    array = [b"[" + encoded[0], *(b"\n,\r\n" + chunk for chunk in encoded[1:]), b"\n]\n"]
    return Answer(
        pieces=tuple(array),
        streamed=True,
        finish_at=len(array) - 2,
        content_type="application/json; charset=UTF-8",
    )


def _encoded(chunk: dict[str, Any], request: ReceivedRequest) -> bytes:
    if request.path.startswith("/v1internal:"):
        return orjson.dumps({"response": chunk, "traceId": "t", "metadata": {}})
    return orjson.dumps(chunk)


def streams(request: ReceivedRequest) -> bool:
    """Whether the path asks for a stream."""
    return request.path.endswith(":streamGenerateContent")


def model_of(request: ReceivedRequest) -> str:
    """The model that the path names, or the envelope."""
    if "/" not in request.path[1:]:
        return request.model
    return request.path.rpartition("/")[2].partition(":")[0]


def usage_of(usage: Usage) -> dict[str, Any]:
    """The `usageMetadata` of a call, which counts thoughts beside the candidates."""
    thoughts = {"thoughtsTokenCount": usage.reasoning_tokens} if usage.reasoning_tokens else {}
    return {
        "promptTokenCount": usage.prompt_tokens,
        "candidatesTokenCount": usage.completion_tokens - usage.reasoning_tokens,
        "totalTokenCount": usage.prompt_tokens + usage.completion_tokens,
        "cachedContentTokenCount": usage.cached_tokens,
        **thoughts,
    }


def error(status: int, kind: str, code: str | None, message: str) -> bytes:
    """The body of an error answer."""
    named = {404: "NOT_FOUND", 429: "RESOURCE_EXHAUSTED"}.get(status, "INTERNAL")
    return orjson.dumps({"error": {"code": status, "message": message, "status": named}})


def error_event(kind: str, code: str | None, message: str) -> bytes:
    """An error in the middle of a stream."""
    return b"data: %b\r\n\r\n" % error(500, kind, code, message)


def _chunk(parts: list[Any], usage: dict[str, Any], finish: str | None) -> dict[str, Any]:
    candidate: dict[str, Any] = {"content": {"parts": parts, "role": "model"}, "index": 0}
    if finish is not None:
        candidate["finishReason"] = finish
    return {"candidates": [candidate], "usageMetadata": usage}


def _parts(reply: Reply, chunks: int | None) -> list[dict[str, Any]]:
    parts: list[dict[str, Any]] = []
    if reply.reasoning:
        parts.append({"text": reply.reasoning, "thought": True})
    if text := reply.content or reply.refusal:
        parts += [{"text": piece} for piece in pieces(text, chunks)]
    for call in reply.tool_calls:
        made = {"name": call.name, "args": call.value}
        named = {"id": call.id} if call.id else {}
        signed = {"thoughtSignature": reply.signature} if reply.signature else {}
        parts.append({"functionCall": named | made, **signed})
    return parts
