"""Answers of the gateway's own: one final text in each dialect, as a body or as a stream.

Clients take them for a model's: they end the run, call no tool, and used no token."""

import json
from collections.abc import Iterable
from typing import Any

from gateway.data_files import read_text
from gateway.values import FieldDict, Fields
from gateway.wire.coerce import as_int, as_mapping, mapping_at
from gateway.wire.sse import encode_event

Body = Fields

_MOST_CHOICES = 128  # Source: OpenAI API reference, `n`

_ECHOED: Fields = json.loads(read_text(__package__, "echoed_fields.json"))
"""Fields of a Responses request that its answer repeats, with what it shows for a missing one."""


def whole(value: Any) -> bytes:
    """A body."""
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "replace")


def chat(body: Body, text: str, number: str, at: int) -> bytes:
    """A chat completion; `number` is its id's, `at` its time in seconds of the epoch."""
    head = {"id": f"chatcmpl-{number}", "created": at, "model": body.get("model")}
    choices = range(min(max(1, as_int(body.get("n"), 1)), _MOST_CHOICES))
    usage = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
    if body.get("stream") is not True:
        message = {"role": "assistant", "content": text, "refusal": None}
        end = {"logprobs": None, "finish_reason": "stop"}
        listed = [{"index": index, "message": message, **end} for index in choices]
        return whole({**head, "object": "chat.completion", "choices": listed, "usage": usage})
    head["object"] = "chat.completion.chunk"
    deltas = [({"role": "assistant", "content": ""}, None), ({"content": text}, None), ({}, "stop")]
    sent = [
        [{"index": index, "delta": delta, "logprobs": None, "finish_reason": finish}]
        for index in choices
        for delta, finish in deltas
    ]
    events = [encode_event({**head, "choices": choice}) for choice in sent]
    if mapping_at(body, "stream_options").get("include_usage") is True:
        events.append(encode_event({**head, "choices": [], "usage": usage}))
    return b"".join([*events, b"data: [DONE]\n\n"])


def messages(body: Body, text: str, number: str) -> bytes:
    """An Anthropic message."""
    cached = {"cache_creation_input_tokens": 0, "cache_read_input_tokens": 0}
    usage = {"input_tokens": 0, **cached, "output_tokens": 0}
    ending = {"stop_reason": "end_turn", "stop_sequence": None}
    message = {
        "id": f"msg_{number}",
        "type": "message",
        "role": "assistant",
        "model": body.get("model"),
        "content": [{"type": "text", "text": text}],
        **ending,
        "usage": usage,
    }
    if body.get("stream") is not True:
        return whole(message)
    block = {"type": "text", "text": ""}
    place = {"index": 0}
    events: list[Fields] = [
        {"type": "message_start", "message": {**message, "content": [], "stop_reason": None}},
        {"type": "content_block_start", **place, "content_block": block},
        {"type": "content_block_delta", **place, "delta": {"type": "text_delta", "text": text}},
        {"type": "content_block_stop", **place},
        {"type": "message_delta", "delta": ending, "usage": usage},
        {"type": "message_stop"},
    ]
    return _named(events)


ANSWER = "response"
"""Member of an answer of Code Assist that is one of the Gemini API. Source: Gemini CLI."""


def gemini(body: Body, text: str, number: str, *, events: bool, enveloped: bool) -> bytes:
    """A generated content; of a stream its only event, or the array of it. `enveloped`: as Code
    Assist answers."""
    content = {"role": "model", "parts": [{"text": text}]}
    answer = {
        "candidates": [{"content": content, "finishReason": "STOP", "index": 0}],
        "usageMetadata": dict.fromkeys(
            ("promptTokenCount", "candidatesTokenCount", "totalTokenCount"), 0
        ),
        "modelVersion": body.get("model"),
        "responseId": number,
    }
    if enveloped:
        answer = {ANSWER: answer}
    if body.get("stream") is not True:
        return whole(answer)
    if events:
        return encode_event(answer)
    return whole([answer])


def responses(body: Body, text: str, number: str, at: int) -> bytes:
    """A response; it is not stored, so that no later request can continue it by its id."""
    part = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    item = {
        "id": f"msg_{number}",
        "type": "message",
        "role": "assistant",
        "status": "completed",
        "content": [part],
    }
    response = {
        "id": f"resp_{number}",
        "object": "response",
        "created_at": at,
        "status": "completed",
        "error": None,
        "incomplete_details": None,
        "model": body.get("model"),
        **{name: body.get(name, usual) for name, usual in _ECHOED.items()},
        "store": False,
        "output": [item],
        "usage": {
            **dict.fromkeys(("input_tokens", "output_tokens", "total_tokens"), 0),
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens_details": {"reasoning_tokens": 0},
        },
    }
    if body.get("stream") is not True:
        return whole(response)
    begun = {**response, "status": "in_progress", "output": [], "usage": None}
    output = {"output_index": 0}
    place = {"item_id": item["id"], **output, "content_index": 0}
    kind = "response.output_text"
    opened = {**item, "status": "in_progress", "content": []}
    events: list[FieldDict] = [
        {"type": "response.created", "response": begun},
        {"type": "response.in_progress", "response": begun},
        {"type": "response.output_item.added", **output, "item": opened},
        {"type": "response.content_part.added", **place, "part": {**part, "text": ""}},
        {"type": f"{kind}.delta", **place, "delta": text, "logprobs": []},
        {"type": f"{kind}.done", **place, "text": text, "logprobs": []},
        {"type": "response.content_part.done", **place, "part": part},
        {"type": "response.output_item.done", **output, "item": item},
        {"type": "response.completed", "response": response},
    ]
    return _named({**event, "sequence_number": place} for place, event in enumerate(events))


def _named(events: Iterable[Fields]) -> bytes:
    return b"".join(encode_event(event, event=str(event["type"])) for event in events)


def answer_formats(body: Body) -> list[Fields]:
    """The formats that a request demands of its answer, in the words of each dialect."""
    formats = (
        body.get("response_format"),
        mapping_at(body, "text").get("format"),
        mapping_at(body, "output_config").get("format"),
        body.get("output_format"),
    )
    return [as_mapping(form) for form in formats]


def is_structured(body: Body) -> bool:
    """Whether a request demands an answer of a given form, in any dialect: a text is none."""
    return any(form.get("type", "text") != "text" for form in answer_formats(body))
