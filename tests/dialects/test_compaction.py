"""Agents that write their history anew keep their conversation, its state and its caps."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from gateway.testing import AppServer, Reply, ScriptedUpstream, ToolCall
from tests.dialects.gateways import STEERING, Start

REPLY = Reply("Let me look again.", tool_calls=(ToolCall("bash", {"command": "pytest"}, id="c"),))
CODEX = {
    "x-codex-turn-metadata": '{"session_id":"s","thread_id":"t-1","turn_id":"%d"}',
    "session-id": "t-1",
}
CLAUDE = {"x-claude-code-session-id": "s-1"}


def responses(steps: int, opening: str) -> dict[str, Any]:
    items: list[Any] = [
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "Do."}]}
    ]
    items.append({"role": "user", "content": [{"type": "input_text", "text": opening}]})
    for step in range(steps):
        said = {"type": "output_text", "text": "Let me look again."}
        items.append({"type": "message", "role": "assistant", "content": [said]})
        call = {"call_id": f"c{step}", "name": "bash", "arguments": '{"command": "pytest"}'}
        items.append({"type": "function_call", **call})
        items.append({"type": "function_call_output", "call_id": f"c{step}", "output": "FAILED"})
    tools = [{"type": "function", "name": "bash", "parameters": {"type": "object"}}]
    return {"model": "m", "store": False, "input": items, "tools": tools}


def messages(steps: int, opening: str) -> dict[str, Any]:
    turns: list[Any] = [{"role": "user", "content": opening}]
    for step in range(steps):
        use = {"type": "tool_use", "id": f"c{step}", "name": "bash", "input": {"command": "pytest"}}
        said = {"type": "text", "text": "Let me look again."}
        turns.append({"role": "assistant", "content": [said, use]})
        result = {"type": "tool_result", "tool_use_id": f"c{step}", "content": "FAILED"}
        turns.append({"role": "user", "content": [result]})
    tools = [{"name": "bash", "input_schema": {"type": "object"}}]
    return {"model": "m", "max_tokens": 9, "system": "Do.", "messages": turns, "tools": tools}


def ask(server: AppServer, path: str, body: dict[str, Any], headers: dict[str, str]) -> Any:
    answer = httpx.post(f"{server.base_url}/{path}", json=body, headers=headers)
    assert answer.status_code == 200
    return answer.headers


@pytest.mark.parametrize(
    ("path", "build", "headers"),
    [("responses", responses, CODEX), ("messages", messages, CLAUDE)],
    ids=["codex", "claude"],
)
def test_a_shorter_history_goes_on(
    gateway_server: Start, upstream: ScriptedUpstream, path: str, build: Any, headers: Any
) -> None:
    """A summary in place of all but the newest turn: the same conversation, steps counted on."""
    upstream.default = REPLY
    server = gateway_server(STEERING)
    seen = [ask(server, path, build(step, "Repair it."), headers) for step in range(5)]
    summary = "Summary of the work so far: the parser fails on empty input."
    compacted = ask(server, path, build(1, summary), headers)
    later = ask(server, path, build(2, summary), headers)
    ids = {h["x-gateway-conversation-id"] for h in (*seen, compacted, later)}
    assert len(ids) == 1
    assert compacted["x-gateway-identity"] == "compaction"
    assert [h["x-gateway-step"] for h in (seen[-1], compacted, later)] == ["4", "5", "6"]
    assert later["x-gateway-state"] != "INIT"
