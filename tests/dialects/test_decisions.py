"""Recorded runs through a live gateway in each dialect: the same decisions."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from steering_gateway_testing import ScriptedUpstream
from steering_gateway_testing.looping import STEERING, Start
from steering_gateway_testing.recorded_agents import Run, calls_of, read_runs, recorded_replies
from tests.dialects.translate import Message, canonical, to_items, to_messages

SAMPLES = Path(__file__).parents[1] / "replays/sample.jsonl.gz"
ROUTES = {"FAST": "small", "NORMAL": "middle", "SLOW": "big", "SKIP": "huge"}
MODEL = "gpt-5"


def chat_body(messages: list[Message], names: list[str]) -> tuple[str, dict[str, Any]]:
    tools = [{"type": "function", "function": {"name": name}} for name in names]
    return "/chat/completions", {"messages": messages, "tools": tools}


def responses_body(messages: list[Message], names: list[str]) -> tuple[str, dict[str, Any]]:
    tools = [{"type": "function", "name": name} for name in names]
    return "/responses", {"input": to_items(messages), "tools": tools, "store": False}


def messages_body(messages: list[Message], names: list[str]) -> tuple[str, dict[str, Any]]:
    system, turns = to_messages(messages)
    body: dict[str, Any] = {"messages": turns, "max_tokens": 1024}
    body["tools"] = [{"name": name, "input_schema": {"type": "object"}} for name in names]
    return "/messages", body | ({"system": system} if system else {})


Build = Callable[[list[Message], list[str]], tuple[str, dict[str, Any]]]


def played(url: str, run: Run, build: Build) -> list[Any]:
    """Send every call of a run; what the answers' headers and the control plane say of it."""
    messages = canonical(run["messages"])
    names = sorted({c["function"]["name"] for m in messages for c in m.get("tool_calls") or []})
    found: list[Any] = []
    with httpx.Client(base_url=url, timeout=120) as client:
        for index in calls_of(messages):
            if not index:
                continue
            path, body = build(messages[:index], names)
            headers = {"x-test-reply": f"{run['id']}|{index}", "x-conversation-id": run["id"]}
            answer = client.post(f"/v1{path}", json={"model": MODEL, **body}, headers=headers)
            assert answer.status_code == 200
            shown = ("step", "state", "difficulty", "monitors", "guidance", "model")
            found.append([answer.headers.get(f"x-gateway-{name}") for name in shown])
        for listed in reversed(client.get("/api/runs").json()["runs"]):
            trace = client.get(f"/api/runs/{listed['id']}").json()
            found += [_decision(step) for step in trace["steps"]]
    return found


def _decision(step: dict[str, Any]) -> Any:
    given = [(i["source"], i["pattern_id"], i["text"]) for i in step["guidance"]]
    return [step["step_index"], step["state"], step["composite"], step["scores"], given]


@pytest.mark.parametrize("build", [responses_body, messages_body], ids=["responses", "messages"])
def test_the_same_decisions(
    gateway_server: Start, upstream: ScriptedUpstream, build: Build
) -> None:
    """Score, state, monitors, guidance and model of every call are those of chat completions."""
    runs = sorted(read_runs(SAMPLES), key=lambda run: len(run["messages"]))[:4]
    upstream.default = recorded_replies(runs)
    settings = {**STEERING, "model_routing": ROUTES}
    for run in runs:
        chat, other = gateway_server(settings), gateway_server(settings)
        assert played(other.url, run, build) == played(chat.url, run, chat_body)
