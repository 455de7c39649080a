"""Kinds and tasks of sub-agents, and the tree that each belongs to, by client."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from gateway.core.decision_settings import Policy
from gateway.features.history.reading import SessionReading, read_session
from gateway.features.history.sub_agent_orders import names_of, root_of, with_orders
from gateway.features.history.summary import summarise
from tests.features.history.logs import sessions

LOGS = Path(__file__).parent / "logs"
ROOT = "11111111-2222-4333-8444-555555555555"
USAGE = {"input_tokens": 1000, "output_tokens": 10}


def write(path: Path, *lines: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(map(json.dumps, lines)))


def readings(folder: Path) -> list[SessionReading]:
    return with_orders([read_session(session, Policy()) for session in sessions(folder)])


def by_id(found: list[SessionReading]) -> dict[str, tuple[str, str, str]]:
    parents = {each.id: each.parent for each in found}
    return {
        each.id.rpartition("/")[2]: (each.order.kind, each.order.task, root_of(each, parents))
        for each in found
        if each.parent
    }


def claude_line(number: int, kind: str, agent: str, content: Any) -> dict[str, Any]:
    message: dict[str, Any] = {"content": content}
    if kind == "assistant":
        message |= {"id": f"msg_{agent}{number}", "usage": USAGE, "model": "claude-sonnet-4-5"}
    line: dict[str, Any] = {
        "type": kind,
        "uuid": f"{agent}{number}",
        "sessionId": ROOT,
        "message": message,
    }
    stamp = f"2026-01-01T00:00:{number:02}Z"
    line = {**line, "timestamp": stamp, "isSidechain": bool(agent), "parentUuid": None}
    return {**line, "agentId": agent} if agent else line


def test_claude_code_names_a_sub_agent_beside_its_log(tmp_path: Path) -> None:
    """What a sub-agent was started for is known without the session that started it, and that of
    one of a sub-agent's own by its call; all belong to the session at the root."""
    text = [{"type": "text", "text": "Found it."}]
    asked = {"subagent_type": "Explore", "description": "Find the cart", "prompt": "Find the cart!"}
    call = [{"type": "tool_use", "id": "t", "name": "Agent", "input": asked}]
    folder = tmp_path / ROOT / "subagents"
    write(
        folder / "agent-a1.jsonl",
        claude_line(1, "user", "a1", "Review all changes, please."),
        claude_line(2, "assistant", "a1", call),
    )
    noted = {"agentType": "reviewer", "description": "Review changes", "toolUseId": "toolu_1"}
    write(folder / "agent-a1.meta.json", noted)
    write(
        folder / "agent-b2.jsonl",
        claude_line(3, "user", "b2", "Find the cart!"),
        claude_line(4, "assistant", "b2", text),
    )
    found = readings(tmp_path)
    assert by_id(found) == {
        "a1": ("reviewer", "Review changes", ROOT),
        "b2": ("Explore", "Find the cart", ROOT),
    }
    summary = summarise(found)
    named = sum(sums.usd for sums in summary.parts["sub-agents"].values())
    assert named == summary.total.usd > 0
    assert set(summary.parts["sub-agents"]) == {"reviewer", "Explore"}


def test_codex_names_role_and_task_of_a_thread(tmp_path: Path) -> None:
    """The task is the end of the agent's path; without a role it has the default one."""
    (reading,) = readings(LOGS / "codex" / "sub_agents")
    assert (reading.order.kind, reading.order.task) == ("default", "cause")
    spawned = {"parent_thread_id": "t1", "agent_role": "explorer", "agent_path": "/root/a/b"}
    meta = {"id": "t2", "source": {"subagent": {"thread_spawn": spawned}}}
    item = {"type": "message", "role": "assistant", "content": [{"type": "text", "text": "x"}]}
    write(
        tmp_path / "rollout-t2.jsonl",
        {"type": "session_meta", "payload": meta},
        {"type": "response_item", "payload": item},
    )
    assert by_id(readings(tmp_path)) == {"t2": ("explorer", "b", "t1")}


def test_copilot_names_a_sub_agent_when_it_starts(tmp_path: Path) -> None:
    """By the id of the agent, or in older versions that of the call; the task is in the call."""

    def event(kind: str, agent: str = "", **data: Any) -> dict[str, Any]:
        return {"type": kind, "data": data, **({"agentId": agent} if agent else {})}

    asked = {"agent_type": "explore", "description": "Find tests", "prompt": "Find all the tests."}
    request = {"toolCallId": "c1", "name": "task", "arguments": asked}
    write(
        tmp_path / "events.jsonl",
        event("session.start", sessionId="s1"),
        event("assistant.message", apiCallId="1", content="", toolRequests=[request]),
        event("subagent.started", toolCallId="c1", agentName="explore"),
        event("user.message", content="Find all the tests.", parentToolCallId="c1"),
        event("assistant.message", apiCallId="2", content="There.", parentToolCallId="c1"),
        event("subagent.started", "a2", agentName="rubber-duck"),
        event("assistant.message", "a2", apiCallId="3", content="Hm."),
    )
    found = readings(tmp_path)
    assert by_id(found) == {"c1": ("explore", "Find tests", "s1"), "a2": ("rubber-duck", "", "s1")}
    assert set(names_of(found).values()) == {"explore", "rubber-duck"}


def test_qwen_code_names_a_sub_agent_beside_its_log(tmp_path: Path) -> None:
    """In a file as Claude Code's; else by the prompt of the call that started it."""
    record = {"uuid": "u", "parentUuid": None, "sessionId": "q1", "agentId": "explore-1"}
    parts = [{"text": "look around"}]
    line = {**record, "type": "assistant", "message": {"role": "model", "parts": parts}}
    write(tmp_path / "agent-explore-1.jsonl", line)
    write(tmp_path / "agent-explore-1.meta.json", {"agentType": "explore", "description": "Look"})
    assert by_id(readings(tmp_path)) == {"explore-1": ("explore", "Look", "q1")}
