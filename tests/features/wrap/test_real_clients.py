"""`gateway wrap` with real agents as they install, against the scripted upstream.

They are found on the path, in the folder that DIALECT_AGENTS names (npm's `.bin`), and in the
environments below the folder that GATEWAY_CLIENT_ENVS names (`aider`, `mini-swe-agent`, which needs
`mcp` beside it: its LiteLLM imports that without declaring it, and waits minutes without). Seen to
pass with Claude Code 2.1.197 (claude-opus-4-8), Codex 0.169.0 (gpt-6.1-sol), opencode 1.18.33
(claude-sonnet-4-6), aider 0.86.2 (claude-sonnet-4-5), Qwen Code 0.15.10 (qwen3.5-plus), each with
its own default model, and mini-swe-agent 2.4.6, which has none.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from gateway.wire.message_identity import tool_names
from steering_gateway_testing import ReceivedRequest, Script, ScriptedUpstream
from steering_gateway_testing.looping import GUIDANCE
from steering_gateway_testing.patience import DEADLINE_MS, run_to_end
from steering_gateway_testing.strict import OWN_FIELDS, StrictProvider
from steering_gateway_testing.values import Fault, FaultKind, Reply, ToolCall

pytestmark = pytest.mark.nightly

ROOT = Path(__file__).parents[3]
FOLDERS = [
    os.environ.get("DIALECT_AGENTS", ""),
    *(str(each / "bin") for each in Path(os.environ.get("GATEWAY_CLIENT_ENVS", "-")).glob("*")),
]
PATH = os.pathsep.join([*FOLDERS, os.environ["PATH"]])
WAIT_S = 480
"""Longest time that an agent may take; what each needs is far less."""
STEPS = 4
SHELL = 'echo "FAILED tests/test_a.py::test_x"; false'
CODEX_SHELL = f"text((await tools.exec_command({{cmd: {json.dumps(SHELL)}}})).output);"
"""The shell for Codex's newest models, which write programs that call tools."""
DONE = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
CALLS = {
    "exec": ToolCall("exec", CODEX_SHELL),
    "exec_command": ToolCall("exec_command", {"cmd": SHELL}),
    "shell_command": ToolCall("shell_command", {"command": SHELL}),
    "shell": ToolCall("shell", {"command": ["bash", "-lc", SHELL]}),
    "Bash": ToolCall("Bash", {"command": SHELL, "description": "run the test"}),
    "bash": ToolCall("bash", {"command": SHELL, "description": "run the test"}),
    "run_shell_command": ToolCall("run_shell_command", {"command": SHELL, "is_background": False}),
}

REFUSALS = (
    *(FaultKind.BAD_REQUEST, FaultKind.UNAUTHORIZED, FaultKind.FORBIDDEN, FaultKind.NOT_FOUND),
    *(FaultKind.CONTEXT_LENGTH, FaultKind.RATE_LIMIT, FaultKind.SERVER_ERROR, FaultKind.OVERLOADED),
    *(FaultKind.HTML_ERROR, FaultKind.SLOW_FIRST_BYTE, FaultKind.DROP_BEFORE_RESPONSE),
)


@dataclass(frozen=True, slots=True)
class Agent:
    """One agent's command, what it needs besides a key, and how many steps it makes of STEPS."""

    command: tuple[str, ...]
    env: dict[str, str] = field(default_factory=dict)
    steps: int = STEPS
    last: ToolCall | None = None
    """The call that ends its task; by default an answer without a call does."""


LOCAL_PRICES = {"LITELLM_LOCAL_MODEL_COST_MAP": "True"}
"""What keeps LiteLLM from waiting for a price list that it downloads."""

AGENTS = {
    "claude": Agent(
        ("claude", "-p", "repair the test", "--allowedTools", "Bash"),
        {"DISABLE_AUTOUPDATER": "1", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1"},
    ),
    "codex": Agent(
        (
            *("codex", "exec", "--skip-git-repo-check"),
            *("--dangerously-bypass-approvals-and-sandbox", "repair the test"),
        )
    ),
    "opencode": Agent(
        ("opencode", "run", "repair the test"),
        {"OPENCODE_DISABLE_AUTOUPDATE": "1", "OPENCODE_PERMISSION": '{"bash": "allow"}'},
    ),
    "opencode at OpenAI": Agent(
        ("opencode", "run", "repair the test"),
        {
            "OPENCODE_DISABLE_AUTOUPDATE": "1",
            "OPENCODE_PERMISSION": '{"bash": "allow"}',
            "ANTHROPIC_API_KEY": "",
        },
    ),
    "aider": Agent(
        (
            *("aider", "--yes-always", "--no-git"),
            *("--no-check-update", "--no-show-model-warnings", "--analytics-disable"),
            *("--no-pretty", "--message", "say what you would do"),
        ),
        LOCAL_PRICES,
        steps=0,
    ),
    "mini": Agent(
        ("mini", "-y", "--exit-immediately", "-m", "openai/gpt-6.1-sol", "-t", "repair the test"),
        {"MSWEA_CONFIGURED": "true", "MSWEA_SILENT_STARTUP": "1", **LOCAL_PRICES},
        last=ToolCall("bash", {"command": DONE}),
    ),
    "qwen": Agent(("qwen", "--yolo", "--auth-type", "openai", "-p", "repair the test")),
}


def model(agent: Agent) -> Callable[[ReceivedRequest], Reply]:
    """Asks for the first tool it knows STEPS times, then ends the task."""
    asked = 0

    def reply(request: ReceivedRequest) -> Reply:
        nonlocal asked
        known = next((CALLS[n] for n in tool_names(request.fields) if n in CALLS), None)
        if known is None:
            return Reply("All done.")
        asked += 1
        if asked > STEPS:
            return Reply("All done.", tool_calls=(agent.last,) if agent.last else ())
        return Reply("Let me run it again.", tool_calls=(known,))

    return reply


def refusing(answers: Callable[[ReceivedRequest], Reply]) -> Script:
    """A model for which every routed name refuses, each time in another way."""
    kinds = itertools.cycle(REFUSALS)

    def reply(request: ReceivedRequest) -> Reply | Fault:
        if request.model.startswith("routed-"):
            return Fault(next(kinds), retry_after="0", delay_s=3)
        return answers(request)

    return reply


@pytest.mark.parametrize("name", AGENTS)
def test_a_real_agent_survives_hostile_routing(
    name: str, upstream: ScriptedUpstream, tmp_path: Path
) -> None:
    """Every state is routed to models that refuse in every way: the agent ends as it would have."""
    upstream.default = refusing(model(AGENTS[name]))
    states = ("FAST", "NORMAL", "SLOW", "SKIP")
    routing = {
        "model_routing": {state: f"routed-{state.lower()}" for state in states},
        # Every call is routed again, and NORMAL, which is the first, is reached at once.
        "routing": {"rest_calls": 0},
        "router": {"num_retries": 0},
        "timeouts": {"first_byte_s": 1},
    }
    (tmp_path / "gateway.yaml").write_text(json.dumps(routing))
    _check(name, upstream, tmp_path, {"GATEWAY_CONFIG": str(tmp_path / "gateway.yaml")})
    routed = [r for r in upstream.requests if r.model.startswith("routed-")]
    assert routed or not AGENTS[name].steps


@pytest.mark.parametrize("name", AGENTS)
def test_a_real_agent_is_wrapped(name: str, upstream: ScriptedUpstream, tmp_path: Path) -> None:
    """It ends with its own status, every step is recorded, and the summary counts them."""
    upstream.default = model(AGENTS[name])
    _check(name, upstream, tmp_path, {})


@pytest.mark.parametrize("name", AGENTS)
def test_a_real_agent_is_steered_before_a_strict_provider(
    name: str, upstream: ScriptedUpstream, tmp_path: Path
) -> None:
    """With its own default model: the provider finds no field that its reference does not name,
    so that nothing is sent twice, and reads the guidance."""
    own = OWN_FIELDS.get(name, frozenset())
    upstream.default = strict = StrictProvider(model(AGENTS[name]), own)
    # An agent without tools gets the rules for the beginning, too.
    _check(name, upstream, tmp_path, {"GATEWAY_ETRACES__E3_WHEN": "always"})
    assert strict.refused == []
    guided = [request for request in strict.accepted if GUIDANCE.encode() in request.body]
    assert len(guided) > AGENTS[name].steps


@dataclass(frozen=True)
class Wrapped:
    """An agent that is installed, before it is started by `gateway wrap` in a folder of its own."""

    agent: Agent
    command: list[str]
    env: dict[str, str]
    folder: Path

    def run(self) -> subprocess.CompletedProcess[str]:
        """What it printed, and its status."""
        return run_to_end(self.command, self.env, self.folder, WAIT_S)


def wrapped(name: str, upstream: ScriptedUpstream, folder: Path, **more: str) -> Wrapped:
    """The agent of this name in front of the model that it talks to; skips where it is not
    installed. `more`: further variables."""
    agent = AGENTS[name]
    program = shutil.which(agent.command[0], path=PATH)
    if program is None:
        pytest.skip(f"{agent.command[0]} is not installed")
    work = folder / "work"
    work.mkdir()
    env = {
        "PATH": PATH,
        "HOME": str(folder),
        "TERM": "dumb",
        "PYTHONPATH": str(ROOT),
        "OPENAI_BASE_URL": upstream.base_url,
        "OPENAI_API_KEY": "sk-client",
        "ANTHROPIC_API_KEY": "sk-client",
        "GATEWAY_STEERING__DEADLINE_MS": str(DEADLINE_MS),
        **agent.env,
        **more,
    }
    if name == "mini":  # its own libraries, not those of the gateway
        program = _without_path(program, folder)
    gateway = [sys.executable, "-m", "gateway", "wrap", "--json", "--"]
    return Wrapped(agent, [*gateway, program, *agent.command[1:]], env, work)


def _check(name: str, upstream: ScriptedUpstream, tmp_path: Path, more: dict[str, str]) -> None:
    started = wrapped(name, upstream, tmp_path, **more)
    agent = started.agent
    ended = started.run()
    told: dict[str, Any] = json.loads(ended.stderr.splitlines()[-1])
    assert ended.returncode == told["exit_status"] == 0, ended.stderr[-3000:]
    assert told["steps"] == agent.steps, ended.stdout[-3000:]
    assert told["calls"] > agent.steps
    assert told["runs"][0]["guidance"] or not agent.steps
    assert upstream.requests
    keys = {r.header("authorization") or r.header("x-api-key") for r in upstream.requests}
    assert keys <= {"Bearer sk-client", "sk-client", None}


def _without_path(program: str, folder: Path) -> str:
    """A script that starts `program` without this checkout on Python's path."""
    script = folder / Path(program).name
    script.write_text(f'#!/bin/sh\nunset PYTHONPATH\nexec "{program}" "$@"\n')
    script.chmod(0o755)
    return str(script)
