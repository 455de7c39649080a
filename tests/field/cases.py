"""Reads the cases: requests, answers of the upstream, and what must be right afterwards."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from steering_gateway_testing import Reply

CASES: list[dict[str, Any]] = json.loads(Path(__file__).with_name("cases.json").read_text("utf-8"))[
    "cases"
]
GUIDANCE = "[STEERING GUIDANCE]"
COMMAND = json.dumps({"command": "pytest tests/test_parser.py"})
FAILED = "FAILED tests/test_parser.py::test_a - AssertionError: 1 != 2\n1 failed, exit code 1"
DOUBT = "Maybe the cache is stale, I am not sure. Wait, let me run the test again."
STEPS = 7
"""Equal failures in a history: more than it takes for an alarm."""


def filled(value: Any, **holes: str) -> Any:
    """The value with its `@NAME@` replaced."""
    text = json.dumps(value)
    for name, shown in holes.items():
        text = text.replace(f"@{name}@", shown)
    return json.loads(text)


def body_of(case: dict[str, Any]) -> dict[str, Any] | None:
    """The body that the client sends; None for none."""
    given = case["request"]["body"]
    if given is None:
        return None
    body = filled(given, CASE=case["id"])
    size, loop = body.pop("big", 0), body.pop("loop", None)
    if size:
        body = filled(body, BIG="A" * size)
    return body if loop is None else looping(loop) | body


def looping(loop: dict[str, Any]) -> dict[str, Any]:
    """A body whose history repeats one failing command, as the dialect writes it."""
    build = {"chat": _chat, "messages": _messages, "responses": _responses}[loop["dialect"]]
    return build(loop)


def _chat(loop: dict[str, Any]) -> dict[str, Any]:
    said: list[Any] = [
        {"role": "system", "content": "You repair programs."},
        {"role": "user", "content": "Fix the failing test."},
    ]
    for number in range(STEPS):
        function = {"name": "bash", "arguments": COMMAND}
        call = {"id": f"c{number}", "type": "function", "function": function}
        asked = {"role": "assistant", "content": DOUBT, "tool_calls": [call]}
        said.append(asked | loop.get("assistant", {}))
        said.append({"role": "tool", "tool_call_id": f"c{number}", "content": FAILED})
    tool = {"name": "bash", "parameters": {"type": "object"}}
    tools = [{"type": "function", "function": tool}]
    return {"messages": [*said, *loop.get("tail", ())], "tools": tools}


def _messages(loop: dict[str, Any]) -> dict[str, Any]:
    said: list[Any] = [{"role": "user", "content": "Fix the failing test."}]
    for number in range(STEPS):
        call = {"type": "tool_use", "id": f"c{number}", "name": "bash"}
        blocks = [*loop.get("blocks", ()), {"type": "text", "text": DOUBT}]
        blocks.append(call | {"input": json.loads(COMMAND)})
        said.append({"role": "assistant", "content": blocks})
        result = {"type": "tool_result", "tool_use_id": f"c{number}", "content": FAILED}
        said.append({"role": "user", "content": [result]})
    return {
        "max_tokens": 200,
        "system": [{"type": "text", "text": "You repair programs."}],
        "messages": [*said, *loop.get("tail", ())],
        "tools": [{"name": "bash", "input_schema": {"type": "object"}}],
    }


def _responses(loop: dict[str, Any]) -> dict[str, Any]:
    items: list[Any] = [{"role": "user", "content": "Fix the failing test."}]
    for number in range(STEPS):
        items.append({"type": "message", "role": "assistant", "content": DOUBT})
        call = {"type": "function_call", "call_id": f"c{number}", "name": "bash"}
        items.append(call | {"arguments": COMMAND})
        result = {"type": "function_call_output", "call_id": f"c{number}", "output": FAILED}
        items.append(result)
    tools = [{"type": "function", "name": "bash", "parameters": {"type": "object"}}]
    given = {"instructions": "You repair programs.", "store": False, "tools": tools}
    return given | {"input": [*items, *loop.get("tail", ())]}


def answers_of(case: dict[str, Any]) -> list[Reply]:
    """What the upstream answers, one call after the other."""
    given = case["up"] if isinstance(case["up"], list) else [case["up"]]
    return [_answer(each) for each in given]


def _answer(given: dict[str, Any]) -> Reply:
    status, headers = given.get("status", 200), given.get("headers", {})
    if "json" in given:
        raw = json.dumps(given["json"], ensure_ascii=False).encode()
        return Reply(raw=raw, status=status, headers=headers, content_type="application/json")
    pieces = tuple(_event(event, given.get("nl", "\n")) for event in given["sse"])
    return Reply(
        raw=pieces,
        status=status,
        headers=headers,
        write_bytes=given.get("split"),
        chunk_delay_s=given.get("delay"),
    )


def _event(event: dict[str, Any], nl: str) -> bytes:
    if "_raw" in event:
        return str(event["_raw"]).encode()
    head = f"event: {event['event']}{nl}" if "event" in event else ""
    data = json.dumps(event.get("data", event), ensure_ascii=False)
    return f"{head}data: {data}{nl}{nl}".encode()


def changes(before: Any, after: Any, path: str = "") -> Iterator[str]:
    """The places where `after` has something else than `before` with guidance added."""
    if before == after or _is_guided_text(before, after):
        return
    if isinstance(before, dict) and isinstance(after, dict):
        for key in {**before, **after}:
            place = f"{path}.{key}" if path else key
            if key not in before and GUIDANCE in json.dumps(after[key]):
                continue
            yield from changes(before.get(key), after.get(key), place)
    elif isinstance(before, list) and isinstance(after, list):
        kept = [each for each in after if not _is_guidance(each)]
        if len(kept) != len(before):
            yield path
            return
        for index, (one, other) in enumerate(zip(before, kept, strict=True)):
            yield from changes(one, other, f"{path}[{index}]")
    else:
        yield path


def _is_guided_text(before: Any, after: Any) -> bool:
    if not isinstance(before, str):
        return False
    if isinstance(after, list):
        first, *added = after
        return bool(first.get("text") == before and all(map(_is_guidance, added)))
    if not isinstance(after, str) or not after.startswith(before):
        return False
    return after[len(before) :].lstrip().startswith(GUIDANCE)


def _is_guidance(value: Any) -> bool:
    """Whether a message, an item or a block is guidance alone."""
    if not isinstance(value, dict):
        return False
    content = value.get("text", value.get("content"))
    return isinstance(content, str) and content.startswith(GUIDANCE)
