"""The scripted provider of a dry run: its answer follows from the request alone.

It runs a command over and over until the request holds guidance beside that of its beginning, or
until its patience is at an end; then it goes the way that the task has for that. It proves that
the kit measures what happens, and nothing about guidance.
"""

from __future__ import annotations

from typing import Any

from bench.live.local import marker, tiny_tasks
from gateway.core.guidance_text import FRAME_OPEN
from steering_gateway_testing import ReceivedRequest, Reply, ToolCall, Usage

FINISH = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
"""A command with which mini-swe-agent ends its task."""
_TOOLS = ("bash", "Bash")
_USAGE = Usage(prompt_tokens=1000, completion_tokens=40)
_FRAMES_NEEDED = 2
"""The first one comes with the first request and is about nothing that happened."""


def answer(request: ReceivedRequest) -> Reply:
    """The next command of the task in the request, or the end of it."""
    body = request.body.decode("utf-8", "replace")
    task = next((t for t in tiny_tasks() if marker(t["name"]) in body), None)
    tool = next((name for name in _TOOLS if f'"{name}"' in body), None)
    if task is None or tool is None:
        return Reply('{"title": "A task"}', usage=_USAGE)
    command = _next(task, body, sum(map(_results, request.messages)))
    if command is None and FINISH not in body:
        return Reply("Done.", usage=_USAGE)
    arguments = {"command": command or FINISH}
    if tool == "Bash":
        arguments["description"] = "the next step"
    return Reply("Let me try.", tool_calls=(ToolCall(tool, arguments),), usage=_USAGE)


def _next(task: dict[str, Any], body: str, results: int) -> str | None:
    guided = body.count(FRAME_OPEN) >= _FRAMES_NEEDED
    begun = [c for c in (*task.get("guided", ()), *task["unguided"]) if c in body]
    repeated = results - len(begun)
    if "repeat" in task and not begun and not guided and repeated < task["times"]:
        return str(task["repeat"])
    way = task["guided"] if guided and "repeat" in task else task["unguided"]
    return next((command for command in way if command not in body), None)


def _results(message: Any) -> int:
    if not isinstance(message, dict):
        return 0
    if message.get("role") == "tool":
        return 1
    content = message.get("content")
    parts = content if isinstance(content, list) else []
    return sum(isinstance(part, dict) and part.get("type") == "tool_result" for part in parts)
