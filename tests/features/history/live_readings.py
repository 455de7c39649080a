"""A session played through the live gateway, and the readings that it stored."""

from __future__ import annotations

from typing import Any

import httpx
import orjson

from gateway.backends import open_stores
from gateway.features.history.session import Session
from gateway.steering.transcript.interventions import Intervention
from gateway.stores.filters import RunFilter
from gateway.wire.messages import content_text
from steering_gateway_testing import AppServer, ReceivedRequest, Reply, ToolCall

WHICH = "x-test-reply"
SUMMARY = "summary of what comes before "
TOOLS = [{"name": "Bash", "description": "Runs a command", "input_schema": {"type": "object"}}]
_SUMMARISE = "Your task is to create a detailed summary of the conversation so far."
Reading = tuple[int, int, float, str, tuple[str, ...]]
"""Run, step, difficulty, state and fired monitors, of one scored step."""


def replies(session: Session) -> Any:
    """A provider that gives the session's own answers."""

    def reply(request: ReceivedRequest) -> Reply:
        which = request.header(WHICH)
        if which is None:
            return Reply("A title.")
        if which.startswith(SUMMARY):
            at = int(which.removeprefix(SUMMARY))
            return Reply(content_text(session.messages[at]["content"]))
        blocks = session.messages[int(which)]["content"]
        text = "".join(b["text"] for b in blocks if b.get("type") == "text")
        calls = tuple(
            ToolCall(b["name"], b["input"], id=b["id"])
            for b in blocks
            if b.get("type") == "tool_use"
        )
        return Reply(text or None, tool_calls=calls)

    return reply


async def play(server: AppServer, session: Session) -> None:
    """Send the session's requests as its client did, with the request that asks for a summary
    before each compaction."""
    start = 0
    compactions = list(session.compactions)
    async with httpx.AsyncClient(timeout=120) as client:

        async def post(messages: list[dict[str, Any]], which: str) -> None:
            sent = [{"role": m["role"], "content": m["content"]} for m in messages]
            body = {
                "model": "claude",
                "max_tokens": 1000,
                "system": "You are a coding agent.",
                "tools": TOOLS,
                "messages": sent,
            }
            answer = await client.post(
                f"{server.url}/v1/messages",
                content=orjson.dumps(body),
                headers={
                    WHICH: which,
                    "content-type": "application/json",
                    "x-claude-code-session-id": session.id,
                },
            )
            assert answer.status_code == 200, answer.text

        for call in session.calls:
            if compactions and compactions[0] < call.position:
                at = compactions.pop(0)
                asks = {"role": "user", "content": [{"type": "text", "text": _SUMMARISE}]}
                await post([*session.messages[start:at], asks], f"{SUMMARY}{at}")
                start = at
            await post(session.messages[start : call.position], str(call.position))


async def acts_stored(server: AppServer, mode: str) -> list[tuple[int, int, Intervention]]:
    """What the person did: run, step and act of all runs of a mode, in order."""
    stores = await open_stores(server.app.runtime.settings.storage)
    try:
        return [
            (trace.run.sequence, step.step_index, act)
            async for trace in stores.runs.export_runs(RunFilter(mode=mode))
            for step in trace.steps
            for act in (step.content.human if step.content else ())
        ]
    finally:
        await stores.close()


async def stored(server: AppServer) -> list[Reading]:
    """The readings of all scored steps in the gateway's store, in order."""
    stores = await open_stores(server.app.runtime.settings.storage)
    try:
        found: list[Reading] = []
        async for trace in stores.runs.export_runs(RunFilter()):
            for step in trace.steps:
                if step.difficulty is not None:
                    about = step.step_index, step.difficulty, step.state
                    found.append((trace.run.sequence, *about, tuple(step.fired)))
    finally:
        await stores.close()
    return sorted(found)
