"""An alarm of the session is named wherever those of the monitors are."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import httpx

from gateway.core.decision_settings import Policy
from gateway.features.history.reading import read_session
from steering_gateway_testing import AppServer, Reply, ScriptedUpstream
from steering_gateway_testing.claude_code_sessions import Log
from tests.features.history.test_agrees_with_live import sessions_in

COMMAND = "git remote set-url origin git@example.test:team/app.git"


def called(name: str, command: str, result: str) -> list[dict]:
    """A shell command with its result."""
    arguments = json.dumps({"command": command})
    call = {"id": name, "type": "function", "function": {"name": "bash", "arguments": arguments}}
    return [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": name, "content": result},
    ]


async def test_the_header_names_it(
    gateway_server: Callable[..., AppServer], upstream: ScriptedUpstream
) -> None:
    """One setting is made in three runs; with the third it stands beside the monitors."""
    upstream.default = Reply("The task is done as you wished.")
    server = gateway_server({"steering": {"mode": "shadow"}})
    messages: list[dict] = []
    named = []
    for run in range(3):
        messages.append({"role": "user", "content": f"Now task number {run}, please."})
        messages += called(f"a{run}", "ls", f"file_{run}.py")
        messages += called(f"b{run}", COMMAND, "")
        body = {"model": "gpt-4o", "messages": messages}
        async with httpx.AsyncClient(base_url=server.url, timeout=120) as client:
            answer = await client.post("/v1/chat/completions", json=body)
        named.append(answer.headers["x-gateway-monitors"])
        messages.append(answer.json()["choices"][0]["message"])
    assert named == ["", "", "session"]


def test_history_counts_it(tmp_path: Path) -> None:
    """Among the alarms of the sessions that a log holds."""
    log = Log()
    for run in range(3):
        log.user(f"Now task number {run}, please.")
        log.bash("ls", f"file_{run}.py").bash(COMMAND, "").answer(f"Task {run} is done.")
    file = tmp_path / "one.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in log.lines))
    (session,) = sessions_in(file)
    (alarm,) = read_session(session, Policy()).alarms
    assert alarm.monitors == ("session",)
    assert "for the third time in this session" in alarm.evidence
