"""Real coding agents, only their base URL set, against the scripted upstream.

They are found by name on the path, or in the folder that DIALECT_AGENTS names (npm's `.bin`).
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.wire.message_identity import content_text, tool_names
from steering_gateway_testing import ReceivedRequest, Reply, ScriptedUpstream, ToolCall, Usage
from steering_gateway_testing.looping import GUIDANCE, OFF, STEERING, Start, states
from steering_gateway_testing.patience import run_to_end
from tests.dialects.taps import Exchanged, Tap

FOLDER = os.environ.get("DIALECT_AGENTS", "")
STEPS = 6
THOUGHT = "Maybe the cache is stale, I am not sure. Wait, let me run it again."

Run = Callable[..., subprocess.CompletedProcess[str]]


def found(program: str) -> str | None:
    return shutil.which(program, path=f"{FOLDER}{os.pathsep}{os.environ.get('PATH', '')}")


def needs(program: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(found(program) is None, reason=f"{program} is not installed")


def model(calls: dict[str, ToolCall], steps: int) -> Callable[[ReceivedRequest], Reply]:
    """A model that asks for the first tool it knows, `steps` times, and then answers."""
    asked = 0

    def reply(request: ReceivedRequest) -> Reply:
        nonlocal asked
        known = next((calls[n] for n in tool_names(request.fields) if n in calls), None)
        if known is None or asked >= steps:
            return Reply('{"title": "All done"}')
        asked += 1
        return Reply(THOUGHT, reasoning="Hm.", tool_calls=(known,))

    return reply


def run(command: list[str], env: dict[str, str], work: Path) -> subprocess.CompletedProcess[str]:
    work.mkdir(exist_ok=True)
    env = {"PATH": os.environ["PATH"], "TERM": "dumb", **env}
    return run_to_end(command, env, work)


@pytest.fixture
def codex(tmp_path: Path) -> Run:
    """Codex CLI, one task without a terminal."""
    home = tmp_path / "codex"
    home.mkdir()

    def start(server: Any, *more: str) -> subprocess.CompletedProcess[str]:
        (home / "config.toml").write_text(f'openai_base_url = "{server.base_url}"\n')
        env = {"HOME": str(home), "CODEX_HOME": str(home), "OPENAI_API_KEY": "sk-client"}
        flags = ["--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"]
        command = [str(found("codex")), "exec", *flags, *more, "repair the test"]
        return run(command, env, tmp_path / "work")

    return start


@pytest.fixture
def claude(tmp_path: Path) -> Run:
    """Claude Code CLI, one task without a terminal."""

    def start(server: Any, *said: str) -> subprocess.CompletedProcess[str]:
        env = {
            "HOME": str(tmp_path / "home"),
            "ANTHROPIC_API_KEY": "sk-client",
            "ANTHROPIC_BASE_URL": server.url,
            "DISABLE_AUTOUPDATER": "1",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        }
        said = said or ("repair the test",)
        command = [str(found("claude")), "-p", *said, "--allowedTools", "Bash"]
        return run(command, env, tmp_path / "work")

    return start


SHELL = 'echo "FAILED tests/test_a.py::test_x"; false'
PROGRAM = f"text((await tools.exec_command({{cmd: {json.dumps(SHELL)}}})).output);"
"""The shell for Codex's newest models, which write programs that call tools."""
CALLS = {
    "exec": ToolCall(
        "exec", f"text((await tools.exec_command({{cmd: {json.dumps(SHELL)}}})).output);"
    ),
    "exec_command": ToolCall("exec_command", {"cmd": SHELL}),
    "shell_command": ToolCall("shell_command", {"command": SHELL}),
    "shell": ToolCall("shell", {"command": ["bash", "-lc", SHELL]}),
    "Bash": ToolCall("Bash", {"command": SHELL, "description": "run the test"}),
}
AGENTS = [
    pytest.param("codex", "gpt-", marks=needs("codex")),
    pytest.param("claude", "", marks=needs("claude")),
]


def turns(upstream: ScriptedUpstream) -> list[ReceivedRequest]:
    """The requests of the agent's own loop, titles and probes left out."""
    return [r for r in upstream.requests if r.method == "POST" and tool_names(r.fields)]


@pytest.mark.slow
@pytest.mark.parametrize(("agent", "asked"), AGENTS)
def test_an_agent_is_steered(
    gateway_server: Start,
    upstream: ScriptedUpstream,
    request: pytest.FixtureRequest,
    agent: str,
    asked: str,
) -> None:
    """Its tool loop completes, its state advances, guidance and routing reach the upstream."""
    upstream.default = model(CALLS, STEPS)
    server = gateway_server({**STEERING, "model_routing": {"NORMAL": "routed", "SLOW": "routed"}})
    ended = request.getfixturevalue(agent)(server)
    assert ended.returncode == 0, ended.stderr
    assert "All done" in ended.stdout
    rows = states(server)
    assert [row[0] for row in rows] == list(range(STEPS + 1))
    assert any("streak" in row[3] for row in rows)
    bodies = [r.body.decode() for r in turns(upstream)]
    assert len(bodies) == STEPS + 1
    told = [body.count(GUIDANCE) for body in bodies]
    assert told[0] == 1
    assert told == sorted(told)
    assert told[-1] >= 2
    models = {row[1]: row[4] for row in rows}
    assert models.get("NORMAL", models.get("SLOW")) == "routed"
    assert rows[0][4].startswith(asked)


@dataclass(frozen=True, slots=True)
class Address:
    """Where an agent is sent to: a tap before a gateway."""

    url: str

    @property
    def base_url(self) -> str:
        return f"{self.url}/v1"


def calls(tap: Tap) -> list[Exchanged]:
    """What went over a tap on the dialects' own routes, in an order of its own."""
    found = [e for e in tap.exchanges() if e.target.startswith(("/v1/messages", "/v1/responses"))]
    posts = [each for each in found if each.method == "POST"]
    return sorted(posts, key=lambda each: (each.request, each.answer))


SHADOW = {"steering": {**STEERING["steering"], "mode": "shadow"}}


@pytest.mark.slow
@pytest.mark.parametrize("settings", [OFF, SHADOW], ids=["off", "shadow"])
@pytest.mark.parametrize(("agent", "asked"), AGENTS)
def test_an_agent_is_left_alone(
    gateway_server: Start,
    upstream: ScriptedUpstream,
    request: pytest.FixtureRequest,
    agent: str,
    asked: str,
    settings: dict[str, Any],
) -> None:
    """With steering off its loop completes, and a tap on either side of the gateway hears the
    same: every body of the agent and every answer of the upstream, to the byte."""
    upstream.default = model(CALLS, 3)
    with Tap(upstream.port) as far:
        base = f"http://127.0.0.1:{far.port}/v1"
        server = gateway_server({**settings, "default_upstream": {"api_base": base}})
        with Tap(server.port) as near:
            ended = request.getfixturevalue(agent)(Address(f"http://127.0.0.1:{near.port}"))
            told, heard = calls(near), calls(far)
    assert ended.returncode == 0, ended.stderr
    assert [row[0] for row in states(server)] == list(range(4))
    assert told == heard
    assert len([each for each in told if each.status == 200]) >= 4
    assert {each.request for each in heard} == {
        r.body for r in upstream.requests if r.method == "POST"
    }
    assert turns(upstream)[0].model.startswith(asked)


@pytest.mark.slow
@needs("codex")
def test_codex_falls_back_from_its_websocket(
    gateway_server: Start, upstream: ScriptedUpstream, codex: Run
) -> None:
    """Refused with 426 by the provider it goes on over HTTP."""
    upstream.default = model(CALLS, 1)
    server = gateway_server(STEERING)
    assert codex(server).returncode == 0
    assert any(request.method == "POST" for request in upstream.requests)


@pytest.mark.slow
@needs("claude")
def test_the_title_of_a_session_is_left_alone(
    gateway_server: Start, upstream: ScriptedUpstream, claude: Run
) -> None:
    """Claude Code asks for a title in the session's name: no run, no guidance."""
    upstream.default = model(CALLS, 2)
    server = gateway_server(STEERING)
    assert claude(server).returncode == 0
    for received in upstream.requests:
        if received.method == "POST" and not tool_names(received.fields):
            assert GUIDANCE not in received.body.decode()
    assert [row[0] for row in states(server)] == [0, 1, 2]


OWN_PROVIDER = '{name="own",base_url="%s",wire_api="responses",env_key="OPENAI_API_KEY"}'
COMPACTED = {
    "id": "resp_compacted",
    "object": "response",
    "status": "completed",
    "output": [{"type": "compaction", "id": "cmp_1", "encrypted_content": "opaque"}],
    "usage": {"input_tokens": 50, "output_tokens": 5, "total_tokens": 55},
}


def streamed(response: dict[str, Any]) -> tuple[bytes, ...]:
    """A response of whole items as the stream that brings it."""
    events: list[dict[str, Any]] = [{"type": "response.created", "response": {"id": "resp_c"}}]
    events += [{"type": "response.output_item.done", "item": i} for i in response["output"]]
    events.append({"type": "response.completed", "response": response})
    return tuple(
        b"event: %b\ndata: %b\n\n" % (e["type"].encode(), json.dumps(e).encode()) for e in events
    )


@pytest.mark.slow
@needs("codex")
@pytest.mark.parametrize("remote", [False, True], ids=["own summary", "compaction"])
def test_codex_makes_its_history_shorter(
    gateway_server: Start, upstream: ScriptedUpstream, codex: Run, remote: bool
) -> None:
    """It asks the model for a summary, or OpenAI for a compacted history, goes on from that,
    and is in the same run."""
    summary = "1. The test in tests/test_a.py shall be repaired.\n2. It was run, and still fails."
    full = Usage(prompt_tokens=400_000, completion_tokens=5)
    asked: list[int] = []

    def reply(request: ReceivedRequest) -> Reply:
        tools = set(tool_names(request.fields))
        asked.append(len(tools))
        known = next((CALLS[name] for name in CALLS if name in tools), None)
        last = request.fields["input"][-1]
        if last.get("type") == "compaction_trigger":
            asked[-1] = 0
            return Reply(raw=streamed(COMPACTED))
        if known is None or "CHECKPOINT" in content_text(last.get("content")):
            asked[-1] = 0
            return Reply(summary, usage=Usage(prompt_tokens=50, completion_tokens=5))
        if len(asked) > 2 * STEPS:
            return Reply("All done.")
        used = full if len(asked) == STEPS else Usage(prompt_tokens=100, completion_tokens=5)
        return Reply(THOUGHT, tool_calls=(known,), usage=used)

    upstream.default = reply
    server = gateway_server(STEERING)
    flags = ["-c", "model_auto_compact_token_limit=20000"]
    if not remote:
        flags += ["-c", f"model_providers.own={OWN_PROVIDER % server.base_url}"]
        flags += ["-c", "model_provider=own"]
    ended = codex(server, *flags)
    assert ended.returncode == 0, ended.stderr
    assert "All done." in ended.stdout
    assert asked.count(0) == 1
    steps = 2 * STEPS - 1
    assert sorted({row[0] for row in states(server)}) == list(range(steps + 1))
    with httpx.Client(base_url=server.url) as client:
        runs = client.get("/api/runs").json()["runs"]
    assert [run["totals"]["scored_steps"] for run in runs] == [steps]
    [summarised] = [r for r in upstream.requests if r.method == "POST" and summarises(r)]
    assert GUIDANCE not in summarised.body.decode()


def summarises(request: ReceivedRequest) -> bool:
    """Whether an agent has its history summarised, by Codex or Claude Code."""
    last = json.dumps([*request.fields.get("input", []), *request.fields.get("messages", [])][-1:])
    signs = ("compaction_trigger", "CHECKPOINT", "create a detailed summary of")
    return any(sign in last for sign in signs)


@pytest.mark.slow
@needs("claude")
def test_claude_code_makes_its_history_shorter(
    gateway_server: Start, upstream: ScriptedUpstream, claude: Run
) -> None:
    """`/compact` is sent as it came, to the model it names, and recorded in the run; what follows
    is in the same conversation."""
    usual = model(CALLS, STEPS)
    summary = (
        "<summary>\n1. The test in tests/test_a.py shall be repaired.\n2. It fails.\n</summary>"
    )
    large = Usage(prompt_tokens=1000, completion_tokens=500)
    upstream.default = lambda r: Reply(summary, usage=large) if summarises(r) else usual(r)
    server = gateway_server({**STEERING, "model_routing": {"NORMAL": "routed", "SLOW": "routed"}})
    for said in (("repair the test",), ("--continue", "/compact"), ("--continue", "thank you")):
        assert claude(server, *said).returncode == 0
    asked = turns(upstream)
    [summarised] = filter(summarises, asked)
    assert summarised.model == asked[0].model != asked[-3].model == "routed"
    assert GUIDANCE not in summarised.body.decode()
    with httpx.Client(base_url=server.url) as client:
        runs = client.get("/api/runs").json()["runs"]
    assert len({run["conversation_id"] for run in runs}) == 1
    totals = runs[-1]["totals"]
    assert (totals["calls"], totals["scored_steps"]) == (STEPS + 2, STEPS)
    assert totals["input_tokens"] == 12 * (STEPS + 1) + 1000
