"""Agents that write their history anew keep their conversation, its state and its caps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from steering_gateway_testing import AppServer, Reply, ScriptedUpstream, ToolCall
from steering_gateway_testing.looping import STEERING, Start
from tests.examples import by_day

SUMMARY = """<analysis>
The parser was looked at, and the test still fails on empty input.
</analysis>
<summary>
1. Request: repair the parser so that it accepts empty input.
2. Next: run the tests of the parser once more.
</summary>"""
RETOLD = """Another model worked on this before. Its summary:
1. Request: repair the parser so that it accepts empty input.
2. Next: run the tests of the parser once more."""
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


AGENTS = [("responses", responses, CODEX), ("messages", messages, CLAUDE)]
ASKED = [{}, {"tools": []}, {"tools": [], "system": "Summarise.", "instructions": "Summarise."}]


def asking(
    build: Any, steps: int, other: dict[str, Any], opening: str = "Repair it."
) -> dict[str, Any]:
    """The request in which an agent has its history summarised."""
    body = build(steps, opening)
    key = "input" if "input" in body else "messages"
    body[key].append({"role": "user", "content": "Summarise what was done so far."})
    return {**body, **other}


@pytest.mark.parametrize("other", by_day(ASKED, 1), ids=["as before", "no tools", "another prompt"])
@pytest.mark.parametrize("restarted", [False, True], ids=["running", "restarted"])
@pytest.mark.parametrize(("path", "build", "headers"), AGENTS, ids=["codex", "claude"])
def test_a_summary_is_no_final_answer(
    gateway_server: Start,
    upstream: ScriptedUpstream,
    tmp_path: Path,
    path: str,
    build: Any,
    headers: Any,
    restarted: bool,
    other: dict[str, Any],
) -> None:
    """The model is asked for a summary, and the run goes on from it: same run, same state."""
    upstream.default = REPLY
    fsm = {"slow_threshold": 0.3}
    settings = {**STEERING, "fsm": fsm, "storage": {"path": str(tmp_path / "kept.db")}}
    server = gateway_server(settings)
    seen = [ask(server, path, build(step, "Repair it."), headers) for step in range(8)]
    upstream.script(Reply(SUMMARY))
    ask(server, path, asking(build, 8, other), headers)
    if restarted:
        server.stop()
        server = gateway_server(settings)
    after = [ask(server, path, build(step, RETOLD), headers) for step in range(2)]
    assert after[0]["x-gateway-identity"] == "compaction"
    assert [h["x-gateway-step"] for h in (seen[-1], *after)] == ["7", "8", "9"]
    assert seen[-1]["x-gateway-state"] == after[0]["x-gateway-state"] == "SLOW"
    runs = httpx.get(f"{server.url}/api/runs").json()["runs"]
    assert [run["totals"]["scored_steps"] for run in runs] == [9]


@pytest.mark.parametrize(("path", "build", "headers"), AGENTS, ids=["codex", "claude"])
def test_a_loop_is_seen_across_compactions(
    gateway_server: Start, upstream: ScriptedUpstream, path: str, build: Any, headers: Any
) -> None:
    """An agent that runs the same failing test, two steps from one summary to the next, is as far
    from FAST as one that keeps its history, and the same monitors fire."""
    upstream.default = REPLY
    server = gateway_server(STEERING)
    whole = [ask(server, path, build(step, "Repair it at once."), {}) for step in range(21)]
    opening, seen = "Repair it.", []
    ask(server, path, build(0, opening), headers)
    for _ in range(10):
        seen += [ask(server, path, build(step, opening), headers) for step in (1, 2)]
        upstream.script(Reply(SUMMARY))
        ask(server, path, asking(build, 2, {"tools": []}, opening), headers)
        opening = RETOLD
        compacted = ask(server, path, build(0, opening), headers)
        assert compacted["x-gateway-identity"] == "compaction"
    assert len({h["x-gateway-conversation-id"] for h in seen}) == 1
    assert [h["x-gateway-step"] for h in seen] == [str(n) for n in range(1, 21)]
    for name in ("x-gateway-monitors", "x-gateway-state"):
        assert [h[name] for h in seen] == [h[name] for h in whole[1:]]
    assert seen[-1]["x-gateway-monitors"]


@pytest.mark.parametrize(("path", "build", "headers"), AGENTS, ids=["codex", "claude"])
def test_a_final_answer_is_no_summary(
    gateway_server: Start, upstream: ScriptedUpstream, path: str, build: Any, headers: Any
) -> None:
    """An agent that answered, and then forgets its history, begins another run."""
    upstream.default = REPLY
    server = gateway_server(STEERING)
    for step in range(3):
        ask(server, path, build(step, "Repair it."), headers)
    upstream.script(Reply("The parser accepts empty input now, and its tests pass."))
    ask(server, path, build(3, "Repair it."), headers)
    after = ask(server, path, build(0, "Now repair the lexer in the same way."), headers)
    assert (after["x-gateway-step"], after["x-gateway-state"]) == ("0", "INIT")


def test_a_compaction_item_is_no_final_answer(
    gateway_server: Start, upstream: ScriptedUpstream
) -> None:
    """OpenAI answers with an item that stands for the history: the run goes on as it stood."""
    upstream.default = REPLY
    server = gateway_server({**STEERING, "fsm": {"slow_threshold": 0.3}})
    for step in range(9):
        seen = ask(server, "responses", responses(step, "Repair it."), CODEX)
    item = {"type": "compaction", "id": "cmp_1", "encrypted_content": "opaque"}
    answer = {"object": "response", "status": "completed", "output": [item]}
    upstream.script(Reply(raw=json.dumps(answer).encode()))
    body = responses(8, "Repair it.")
    body["input"].append({"type": "compaction_trigger"})
    ask(server, "responses", body, CODEX)
    [run] = httpx.get(f"{server.url}/api/runs").json()["runs"]
    assert run["state"] == seen["x-gateway-state"] == "SLOW"
    body = responses(0, "Repair it.")
    body["input"].append(item)
    after = ask(server, "responses", body, CODEX)
    assert (after["x-gateway-step"], after["x-gateway-state"]) == ("8", "SLOW")
