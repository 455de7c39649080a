"""A hook that follows a log says the alarms that the gateway raises for the same calls."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest

from gateway.backends import open_stores
from gateway.core.decision_settings import Policy
from gateway.features.client_hooks import session_alarms
from gateway.features.history.find import identify
from gateway.features.history.reading import outcomes_of
from gateway.features.history.session import Session
from gateway.stores.filters import RunFilter
from steering_gateway_testing import AppServer, ReceivedRequest, Reply, ScriptedUpstream, ToolCall
from tests.features.history.test_agrees_with_live import LOGS, WHICH, play, replies

DEVELOPMENT_LOGS = Path(__file__).parents[4] / "shared/data/session-logs"


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """No other gateway of this machine keeps a hook silent."""
    monkeypatch.setattr(session_alarms, "running_gateways", list)


def by_hook(path: Path, folder: Path) -> list[str]:
    """The alarms that the hook says while the log grows by a line at a time, and at its end."""
    text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    name = path.name.removesuffix(".gz")
    log = folder / name
    said: list[str] = []
    since = -1
    lines = text.splitlines(keepends=True)

    def follow(event: str, text: bytes) -> None:
        nonlocal since
        log.write_bytes(text)
        answer, since = session_alarms.look(event, "", log, since=since)
        if message := answer.get("systemMessage", "").removeprefix("gateway: "):
            said.append(message)

    if name.endswith(".jsonl"):
        for count in range(len(lines) // 10, len(lines), max(1, len(lines) // 60)):
            if any(b"assistant" in line for line in lines[:count]):
                try:
                    follow("PreToolUse", b"".join(lines[:count]))
                except (IndexError, StopIteration):  # no answer yet
                    continue
    follow("Stop", text)
    return said


async def by_wire(server: AppServer) -> list[tuple[int, int, tuple[str, ...]]]:
    """Run, step and alarms of all scored steps in the store."""
    stores = await open_stores(server.app.runtime.settings.storage)
    try:
        return sorted(
            [
                (trace.run.sequence, step.step_index, tuple(step.alarms))
                async for trace in stores.runs.export_runs(RunFilter())
                for step in trace.steps
                if step.difficulty is not None
            ]
        )
    finally:
        await stores.close()


def chat_replies(session: Session) -> Any:
    """A provider that gives the answers of a session in the form of chat completions."""

    def reply(request: ReceivedRequest) -> Reply:
        message = session.messages[int(request.header(WHICH) or 0)]
        calls = [
            ToolCall(c["function"]["name"], c["function"]["arguments"], id=c["id"])
            for c in message.get("tool_calls", ())
        ]
        return Reply(message.get("content") or None, tool_calls=tuple(calls))

    return reply


async def play_chat(server: AppServer, session: Session) -> None:
    """Send the requests of a session as a client of chat completions does."""
    async with httpx.AsyncClient(timeout=120) as client:
        for call in session.calls:
            start = max((at for at in session.compactions if at < call.position), default=0)
            body = {"model": "m", "messages": session.messages[start : call.position]}
            headers = {WHICH: str(call.position), "x-conversation-id": session.id}
            answer = await client.post(
                f"{server.url}/v1/chat/completions",
                content=orjson.dumps({**body, "tools": [TOOL]}),
                headers={"content-type": "application/json", **headers},
            )
            assert answer.status_code == 200, answer.text


TOOL = {"type": "function", "function": {"name": "shell", "parameters": {"type": "object"}}}


async def compare(
    path: Path, folder: Path, start: Callable[..., AppServer], upstream: ScriptedUpstream
) -> int:
    """Compare the alarms of one log; their number."""
    found = identify(path)
    session = next(found.sessions(found.open()))
    server = await asyncio.to_thread(start, {"steering": {"mode": "shadow"}})
    if session.agent == "claude-code":
        upstream.default = replies(session)
        await play(server, session)
    else:
        upstream.default = chat_replies(session)
        await play_chat(server, session)
    outcomes = {each.step.index: each for each in outcomes_of(session, Policy())[0]}
    begun = session_alarms.beginnings(outcomes, -1)
    assert "; ".join(by_hook(path, folder)) == "; ".join([alarm.sentence for alarm in begun])
    wire = await by_wire(server)
    sent = {(run, step) for run, step, _ in wire}  # what follows the last answer was never sent
    own = [(o.run, o.index, o.readings.alarms) for o in outcomes.values()]
    alarms = [(*at, tuple([each.sentence for each in found])) for *at, found in own]
    assert [each for each in alarms if each[:2] in sent] == wire
    return len(begun)


async def test_a_log_says_the_same(
    gateway_server: Callable[..., AppServer], upstream: ScriptedUpstream, tmp_path: Path
) -> None:
    """The beginning of a real session."""
    path = min(LOGS.glob("*.jsonl"))
    await compare(path, tmp_path, gateway_server, upstream)


@pytest.mark.nightly
@pytest.mark.parametrize(
    "path", sorted(DEVELOPMENT_LOGS.glob("*/*.gz")), ids=lambda p: f"{p.parent.name}-{p.name[:8]}"
)
async def test_every_development_log_says_the_same(
    path: Path,
    gateway_server: Callable[..., AppServer],
    upstream: ScriptedUpstream,
    tmp_path: Path,
) -> None:
    """Real sessions of Claude Code, Codex, Copilot CLI and Gemini CLI."""
    print(path.name, await compare(path, tmp_path, gateway_server, upstream))
