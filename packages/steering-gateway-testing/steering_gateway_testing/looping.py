"""Gateways and scripted models for the tests of dialects."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx

from steering_gateway_testing import AppServer, ReceivedRequest, Reply, ToolCall
from steering_gateway_testing.patience import DEADLINE_MS

Start = Callable[..., AppServer]

STEERING = {"steering": {"deadline_ms": DEADLINE_MS}}
OFF = {"steering": {"deadline_ms": DEADLINE_MS, "mode": "off"}}
GUIDANCE = "[STEERING GUIDANCE]"


def looping_model(calls: int, tool: str = "bash") -> Callable[[ReceivedRequest], Reply]:
    """A model that runs the same failing command `calls` times, in doubt, and then answers."""

    def reply(request: ReceivedRequest) -> Reply:
        done = sum(_is_result(item) for item in request.messages)
        if done >= calls:
            return Reply("The suite passes now.")
        return Reply(
            "Maybe the cache is stale, I am not sure. Wait, let me run the test again.",
            reasoning="It may be the cache.",
            tool_calls=(ToolCall(tool, {"command": "pytest tests/test_parser.py"}),),
        )

    return reply


def states(server: AppServer) -> list[tuple[Any, ...]]:
    """(step, state, difficulty, fired, models asked) of every step of every run, oldest run first.

    Read through the control plane, as an operator would.
    """
    with httpx.Client(base_url=server.url, timeout=120) as client:
        runs = client.get("/api/runs").json()["runs"]
        found = []
        for run in reversed(runs):
            trace = client.get(f"/api/runs/{run['id']}").json()
            for step in trace["steps"]:
                call = step.get("call") or {}
                readings = (step["state"], step["difficulty"], tuple(step["fired"]))
                found.append((step["step_index"], *readings, call.get("model_asked")))
        return found


def _is_result(item: Any) -> bool:
    if not isinstance(item, dict):
        return False
    if item.get("role") == "tool" or item.get("type") == "function_call_output":
        return True
    content = item.get("content")
    parts = content if isinstance(content, list) else []
    return any(isinstance(part, dict) and part.get("type") == "tool_result" for part in parts)
