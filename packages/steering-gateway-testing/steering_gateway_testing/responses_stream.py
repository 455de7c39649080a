"""The stream events of a Responses answer, in the order the API sends them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import orjson

from steering_gateway_testing.text import pieces
from steering_gateway_testing.values import Reply, ToolCall

Item = dict[str, Any]


def event(data: Item) -> bytes:
    """One server-sent event named after its `type`."""
    return b"event: %b\ndata: %b\n\n" % (data["type"].encode(), orjson.dumps(data))


def events(reply: Reply, response: Item) -> Iterator[bytes]:
    """Every event of the complete `response`, numbered from 0; the last one is the whole of it."""
    for number, data in enumerate(_events(reply, response)):
        yield event({**data, "sequence_number": number})


def _events(reply: Reply, response: Item) -> Iterator[Item]:
    opening = {**response, "status": "in_progress", "output": [], "usage": None}
    opening["incomplete_details"] = None
    yield {"type": "response.created", "response": opening}
    yield {"type": "response.in_progress", "response": opening}
    calls = iter(reply.tool_calls)
    for index, item in enumerate(response["output"]):
        empty, inner = _streamed(item, reply, calls, {"output_index": index})
        status = {"status": "in_progress"} if "status" in item else {}
        opened = {**item, **empty, **status}
        yield {"type": "response.output_item.added", "output_index": index, "item": opened}
        yield from inner
        yield {"type": "response.output_item.done", "output_index": index, "item": item}
    yield {"type": f"response.{response['status']}", "response": response}


def _streamed(
    item: Item, reply: Reply, calls: Iterator[ToolCall], place: Item
) -> tuple[Item, Iterator[Item]]:
    """What an item lacks when it is added, and the events that complete it."""
    match item["type"]:
        case "reasoning":
            return {"summary": []}, _reasoning_events(reply, item, place)
        case "message":
            return {"content": []}, _message_events(reply, item, place)
        case "custom_tool_call":
            return {"input": ""}, _call_events(next(calls), item, place, "input")
        case _:
            return {"arguments": ""}, _call_events(next(calls), item, place, "arguments")


def _reasoning_events(reply: Reply, item: Item, place: Item) -> Iterator[Item]:
    place = {"item_id": item["id"], **place, "summary_index": 0}
    base = "response.reasoning_summary_"
    part = item["summary"][0]
    yield {"type": f"{base}part.added", **place, "part": {**part, "text": ""}}
    for piece in pieces(part["text"], reply.chunks):
        yield {"type": f"{base}text.delta", **place, "delta": piece}
    yield {"type": f"{base}text.done", **place, "text": part["text"]}
    yield {"type": f"{base}part.done", **place, "part": part}


def _message_events(reply: Reply, item: Item, place: Item) -> Iterator[Item]:
    place = {"item_id": item["id"], **place, "content_index": 0}
    part = item["content"][0]
    kind, key = ("refusal", "refusal") if "refusal" in part else ("output_text", "text")
    text = part[key]
    logprobs: Item = {} if kind == "refusal" else {"logprobs": []}
    yield {"type": "response.content_part.added", **place, "part": {**part, key: ""}}
    for piece in pieces(text, reply.chunks):
        yield {"type": f"response.{kind}.delta", **place, "delta": piece, **logprobs}
    yield {"type": f"response.{kind}.done", **place, key: text, **logprobs}
    yield {"type": "response.content_part.done", **place, "part": part}


def _call_events(call: ToolCall, item: Item, place: Item, key: str) -> Iterator[Item]:
    place = {"item_id": item["id"], **place}
    base = f"response.{item['type']}_{key}"
    for piece in pieces(call.text, call.fragments):
        yield {"type": f"{base}.delta", **place, "delta": piece}
    named = {"name": item["name"]} if key == "arguments" else {}
    yield {"type": f"{base}.done", **place, key: call.text, **named}
