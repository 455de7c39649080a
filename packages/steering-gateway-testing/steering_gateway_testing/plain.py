"""The routes without a conversation: models, embeddings, legacy completions and the echo."""

from __future__ import annotations

import base64
import hashlib
import struct
from collections.abc import Sequence
from typing import Any

import orjson

from steering_gateway_testing import chat
from steering_gateway_testing.exchange import ID_MARK, SSE_TYPE, Answer
from steering_gateway_testing.received import ReceivedRequest
from steering_gateway_testing.text import pieces
from steering_gateway_testing.values import Reply

DIMENSIONS = 8
"""Length of an embedding when the request names none."""


def models(names: Sequence[str], request: ReceivedRequest) -> Answer:
    """The list of models, or one of them, in the form of the API that is asked."""
    wanted = request.path.rpartition("/models")[2].strip("/")
    anthropic = request.header("anthropic-version") is not None
    entries = [_model(name, anthropic) for name in names]
    if wanted:
        if wanted not in names:
            body = chat.error(404, "not_found_error", "model_not_found", "No such model.")
            return Answer(pieces=(body,), status=404)
        return Answer(pieces=(orjson.dumps(_model(wanted, anthropic)),))
    if anthropic:
        page = {"first_id": names[0], "last_id": names[-1], "has_more": False} if names else {}
        return Answer(pieces=(orjson.dumps({"data": entries, **page}),))
    return Answer(pieces=(orjson.dumps({"object": "list", "data": entries}),))


def embeddings(reply: Reply, request: ReceivedRequest) -> Answer:
    """A unit vector per input, drawn from the input's digest: equal texts, equal vectors."""
    fields = request.fields
    wanted = fields.get("dimensions")
    size = wanted if isinstance(wanted, int) and wanted > 0 else DIMENSIONS
    packed = fields.get("encoding_format") == "base64"
    data = [
        {"object": "embedding", "index": i, "embedding": _encoded(vector(text, size), packed)}
        for i, text in enumerate(_inputs(fields.get("input")))
    ]
    tokens = reply.usage.prompt_tokens if reply.usage else 0
    body = {
        "object": "list",
        "data": data,
        "model": reply.model or request.model,
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
        **reply.extra,
    }
    return Answer(pieces=(orjson.dumps(body),))


def completions(reply: Reply, request: ReceivedRequest) -> Answer:
    """A legacy text completion, streamed or not."""
    head = {
        "id": reply.id or f"cmpl-{ID_MARK.decode()}",
        "object": "text_completion",
        "created": chat.CREATED,
        "model": reply.model or request.model,
        **reply.extra,
    }
    text = reply.content or ""
    usage = chat.usage_of(reply.usage) if reply.usage else None
    if not request.stream:
        body = {**head, "choices": [_text_choice(text, reply.finish)], "usage": usage}
        return Answer(pieces=(orjson.dumps(body),))
    choices = [_text_choice(piece, None) for piece in pieces(text, reply.chunks)]
    events = [chat.event({**head, "choices": [c]}) for c in choices]
    end = chat.event({**head, "choices": [_text_choice("", reply.finish)]})
    return Answer(
        pieces=(*events, end, chat.DONE),
        streamed=True,
        finish_at=len(events),
        content_type=SSE_TYPE,
    )


def echo(request: ReceivedRequest) -> Answer:
    """The request's body under its own content type; without a body, its request line as JSON."""
    if request.body:
        kind = request.header("content-type") or "application/octet-stream"
        return Answer(pieces=(request.body,), content_type=kind)
    line = {"method": request.method, "path": request.path, "query": request.query}
    return Answer(pieces=(orjson.dumps(line),))


def vector(text: str, size: int) -> list[float]:
    """A unit vector of `size` 32-bit floats made from the SHA-256 of `text`."""
    blocks = -(-size // 8)
    seeds = (hashlib.sha256(f"{i}:{text}".encode()).digest() for i in range(blocks))
    numbers = struct.unpack(f"<{blocks * 8}i", b"".join(seeds))[:size]
    norm = sum(n * n for n in numbers) ** 0.5
    return list(struct.unpack(f"<{size}f", struct.pack(f"<{size}f", *(n / norm for n in numbers))))


def _model(name: str, anthropic: bool) -> dict[str, Any]:
    if anthropic:
        day = "2023-11-14T22:13:20Z"
        return {"type": "model", "id": name, "display_name": name, "created_at": day}
    return {"id": name, "object": "model", "created": chat.CREATED, "owned_by": "scripted"}


def _inputs(value: Any) -> list[str]:
    """The input as texts; a list of numbers is one tokenised text."""
    if not isinstance(value, list) or (value and isinstance(value[0], int)):
        value = [value]
    return [item if isinstance(item, str) else orjson.dumps(item).decode() for item in value]


def _encoded(numbers: list[float], packed: bool) -> Any:
    if not packed:
        return numbers
    return base64.b64encode(struct.pack(f"<{len(numbers)}f", *numbers)).decode()


def _text_choice(text: str, finish: str | None) -> dict[str, Any]:
    return {"index": 0, "text": text, "logprobs": None, "finish_reason": finish}
