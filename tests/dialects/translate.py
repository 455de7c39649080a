"""One transcript in the four dialects, as their clients would write it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Message = dict[str, Any]
SYSTEM_ROLES = ("system", "developer")


def canonical(messages: Sequence[Mapping[str, Any]]) -> list[Message]:
    """Chat messages whose calls have objects for arguments, which is all Messages can carry."""
    out: list[Message] = []
    for message in messages:
        kept = {k: v for k, v in message.items() if k in _KEPT}
        if kept.get("tool_calls"):
            kept["tool_calls"] = [_canonical_call(call) for call in kept["tool_calls"]]
        out.append(kept)
    return out


def to_items(messages: Sequence[Message]) -> list[Message]:
    """Items of the Responses API."""
    return [item for message in messages for item in _items(message)]


def to_messages(messages: Sequence[Message]) -> tuple[str | None, list[Message]]:
    """(system prompt, messages) of Anthropic's API; results of one turn share a message."""
    lead = next((i for i, m in enumerate(messages) if m["role"] not in SYSTEM_ROLES), 0)
    system = "\n\n".join(str(m["content"]) for m in messages[:lead])
    out: list[Message] = []
    results: list[Message] = []
    for message in messages[lead:]:
        if message["role"] == "tool":
            if not results:
                out.append({"role": "user", "content": results})
            results.append(_result_block(message))
            continue
        results = []
        out.append(_blocks(message))
    return system or None, out


def to_contents(messages: Sequence[Message]) -> tuple[str | None, list[Message]]:
    """(system prompt, contents) of Gemini's API, with ids of calls, as its newest models have."""
    system, blocks = to_messages(messages)
    names = {c["id"]: c["function"]["name"] for m in messages for c in m.get("tool_calls") or ()}
    contents = []
    for message in blocks:
        given = message["content"]
        listed = [{"type": "text", "text": given}] if isinstance(given, str) else given or []
        role = "model" if message["role"] == "assistant" else "user"
        contents.append({"role": role, "parts": [_part(block, names) for block in listed]})
    return system, contents


def _part(block: Message, names: Mapping[str, str]) -> Message:
    match block["type"]:
        case "thinking":
            return {"text": block["thinking"], "thought": True}
        case "tool_use":
            call = {"id": block["id"], "name": block["name"], "args": block["input"]}
            return {"functionCall": call, "thoughtSignature": "c2ln"}
        case "tool_result":
            call_id = block["tool_use_id"]
            response = {"output": block["content"]}
            answer = {"id": call_id, "name": names[call_id], "response": response}
            return {"functionResponse": answer}
        case _:
            return {"text": block["text"]}


_KEPT = ("role", "content", "tool_calls", "tool_call_id", "reasoning_content")


def _canonical_call(call: Mapping[str, Any]) -> Message:
    function = call["function"]
    text = json.dumps(_object(function["arguments"]), ensure_ascii=False)
    return {**call, "function": {"name": function["name"], "arguments": text}}


def _object(arguments: str) -> Any:
    try:
        value = json.loads(arguments)
    except ValueError:
        value = None
    return value if isinstance(value, dict) else {"arguments": arguments}


def _items(message: Message) -> Iterator[Message]:
    role, content = message["role"], message.get("content")
    if role == "tool":
        call_id = message["tool_call_id"]
        yield {"type": "function_call_output", "call_id": call_id, "output": content}
        return
    if role != "assistant":
        yield {"role": role, "content": content}
        return
    if reasoning := message.get("reasoning_content"):
        summary = [{"type": "summary_text", "text": reasoning}]
        yield {"type": "reasoning", "id": "rs_1", "summary": summary}
    calls = message.get("tool_calls") or ()
    if content or not calls:
        part: dict[str, Any] = {"type": "output_text", "text": content or "", "annotations": []}
        yield {"type": "message", "id": "msg_1", "role": "assistant", "content": [part]}
    for call in calls:
        head = {"type": "function_call", "id": f"fc_{call['id']}", "call_id": call["id"]}
        yield {**head, **call["function"], "status": "completed"}


def _blocks(message: Message) -> Message:
    role, content = message["role"], message.get("content")
    if role != "assistant":
        return {"role": role, "content": content}
    blocks: list[Message] = []
    if reasoning := message.get("reasoning_content"):
        blocks.append({"type": "thinking", "thinking": reasoning, "signature": "c2ln"})
    if content:
        blocks.append({"type": "text", "text": content})
    for call in message.get("tool_calls") or ():
        function = call["function"]
        arguments = json.loads(function["arguments"])
        head = {"type": "tool_use", "id": call["id"], "name": function["name"]}
        blocks.append({**head, "input": arguments})
    return {"role": "assistant", "content": blocks}


def _result_block(message: Message) -> Message:
    block: Message = {"type": "tool_result", "tool_use_id": message["tool_call_id"]}
    return {**block, "content": message.get("content")}
