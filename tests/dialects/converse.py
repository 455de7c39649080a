"""The wire of Amazon Bedrock's Converse, as its service model has it, from and to Messages."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from steering_gateway_testing.aws import event_frame

Message = dict[str, Any]


def to_blocks(content: Any) -> list[Message]:
    """Blocks of Converse for a content of Messages."""
    if content is None:
        return []
    given = [{"type": "text", "text": content}] if isinstance(content, str) else content
    return [_to_block(block) for block in given]


def in_blocks(messages: Sequence[Message]) -> list[Message]:
    """Messages of Converse for those of Messages."""
    return [{**message, "content": to_blocks(message["content"])} for message in messages]


def _to_block(block: Message) -> Message:
    match block["type"]:
        case "thinking":
            text = {"text": block["thinking"], "signature": block["signature"]}
            return {"reasoningContent": {"reasoningText": text}}
        case "tool_use":
            asked = {"name": block["name"], "input": block["input"]}
            return {"toolUse": {"toolUseId": block["id"], **asked}}
        case "tool_result":
            answered = {"content": to_blocks(block["content"]), "status": "success"}
            return {"toolResult": {"toolUseId": block["tool_use_id"], **answered}}
        case _:
            return {"text": block["text"]}


def in_messages(content: Sequence[Message]) -> list[Message]:
    """Calls and results as a script of Messages reads them; anything else as a text."""
    made: list[Message] = []
    for block in content:
        if "toolResult" in block:
            made.append({"type": "tool_result", "tool_use_id": block["toolResult"]["toolUseId"]})
        else:
            made.append({"type": "text", "text": block.get("text", "")})
    return made


def from_messages(answer: Message) -> Message:
    """The answer of Converse that says the same."""
    usage = answer["usage"]
    counts = {"inputTokens": usage["input_tokens"], "outputTokens": usage["output_tokens"]}
    counts["cacheReadInputTokens"] = usage.get("cache_read_input_tokens", 0)
    counts["cacheWriteInputTokens"] = usage.get("cache_creation_input_tokens", 0)
    counts["totalTokens"] = sum(counts.values())
    message = {"role": "assistant", "content": to_blocks(answer["content"])}
    return {
        "output": {"message": message},
        "stopReason": answer["stop_reason"],
        "usage": counts,
        "metrics": {"latencyMs": 7},
    }


def frames(answer: Message) -> list[bytes]:
    """The same as the messages of an event stream, padded as Bedrock pads them."""
    return [a_frame(name, {**event, "p": "abcdefgh"}) for name, event in _events(answer)]


def a_frame(name: str, event: Any) -> bytes:
    headers = {":event-type": name, ":content-type": "application/json", ":message-type": "event"}
    return event_frame(json.dumps(event).encode(), headers)


def _events(answer: Message) -> Iterator[tuple[str, Message]]:
    yield "messageStart", {"role": "assistant"}
    for index, block in enumerate(answer["output"]["message"]["content"]):
        place = {"contentBlockIndex": index}
        if call := block.get("toolUse"):
            named = {"toolUseId": call["toolUseId"], "name": call["name"]}
            yield "contentBlockStart", {**place, "start": {"toolUse": named}}
            deltas: list[Message] = [
                {"toolUse": {"input": piece}} for piece in _halves(json.dumps(call["input"]))
            ]
        elif thought := block.get("reasoningContent"):
            text = thought["reasoningText"]
            deltas = [{"reasoningContent": {"text": piece}} for piece in _halves(text["text"])]
            deltas += [{"reasoningContent": {"signature": text["signature"]}}]
        else:
            deltas = [{"text": piece} for piece in _halves(block["text"])]
        for delta in deltas:
            yield "contentBlockDelta", {**place, "delta": delta}
        yield "contentBlockStop", place
    yield "messageStop", {"stopReason": answer["stopReason"]}
    yield "metadata", {"usage": answer["usage"], "metrics": answer["metrics"]}


def _halves(text: str) -> tuple[str, str]:
    middle = len(text) // 2
    return text[:middle], text[middle:]
