"""Claude Code and Codex as they install, with the hooks, and no gateway before their provider.

They are found on the path or in the folder that DIALECT_AGENTS names. Seen to pass with Claude Code
2.1.197 and Codex 0.171.0, each with its own default model."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gateway.wire.message_identity import tool_names
from steering_gateway_testing import ReceivedRequest, ScriptedUpstream
from steering_gateway_testing.patience import run_to_end
from steering_gateway_testing.values import Reply, ToolCall

pytestmark = pytest.mark.nightly
ROOT = Path(__file__).parents[3]
PATH = os.pathsep.join([os.environ.get("DIALECT_AGENTS", ""), os.environ["PATH"]])
FAILS = 'echo "FAILED tests/test_a.py::test_x"; false'
HELD = "touch held; git push origin"
COMMANDS = [*[FAILS] * 4, HELD, "git status > ran"]
AGENTS = {
    "claude-code": (
        ["claude", "-p", "repair the test", "--dangerously-skip-permissions"],
        {"DISABLE_AUTOUPDATER": "1", "IS_SANDBOX": "1"},
    ),
    "codex": (
        [
            *("codex", "exec", "--skip-git-repo-check", "--dangerously-bypass-hook-trust"),
            *("--dangerously-bypass-approvals-and-sandbox", "repair the test"),
        ],
        {},
    ),
}


def call(request: ReceivedRequest, command: str) -> ToolCall | None:
    """A call of the shell that this client has."""
    known = tool_names(request.fields)
    if "exec" in known:
        program = f"text((await tools.exec_command({{cmd: {json.dumps(command)}}})).output);"
        return ToolCall("exec", program)
    if "exec_command" in known:
        return ToolCall("exec_command", {"cmd": command})
    if "Bash" in known:
        return ToolCall("Bash", {"command": command, "description": "run"})
    return None


@pytest.mark.parametrize("name", AGENTS)
def test_a_real_agent_with_hooks(name: str, upstream: ScriptedUpstream, tmp_path: Path) -> None:
    """The alarm reaches the agent, the call on the list does not run, the next one does, and the
    agent ends with 0."""
    command, more = AGENTS[name]
    program = shutil.which(command[0], path=PATH)
    if program is None:
        pytest.skip(f"{command[0]} is not installed")
    asked = iter(COMMANDS)

    def reply(request: ReceivedRequest) -> Reply:
        if call(request, "") is None:
            return Reply("A title.")
        wanted = next(asked, None)
        if wanted is None:
            return Reply("All done.")
        found = call(request, wanted)
        assert found is not None
        return Reply("Let me run it.", tool_calls=(found,))

    upstream.default = reply
    work = tmp_path / "work"
    work.mkdir()
    (tmp_path / "own.yaml").write_text("client_hooks: {ask: [git push], share: 1}\n")
    env = {
        "PATH": PATH,
        "HOME": str(tmp_path),
        "TERM": "dumb",
        "PYTHONPATH": str(ROOT),
        "OPENAI_BASE_URL": upstream.base_url,
        "OPENAI_API_KEY": "sk-client",
        "CODEX_API_KEY": "sk-client",
        "ANTHROPIC_BASE_URL": upstream.base_url.removesuffix("/v1"),
        "ANTHROPIC_API_KEY": "sk-client",
        **more,
    }
    options = ["--config", str(tmp_path / "own.yaml"), "--yes"]
    installed = [sys.executable, "-m", "gateway", "hooks", "install", name, *options]
    subprocess.run(installed, env=env, check=True, timeout=120, capture_output=True)
    if name == "codex":
        command = [*command[:1], "-c", f'openai_base_url="{upstream.base_url}"', *command[1:]]
    ended = run_to_end([program, *command[1:]], env, work, 400)
    assert ended.returncode == 0, ended.stderr[-3000:]
    said = ended.stdout[-2000:] + ended.stderr[-3000:]
    assert (work / "ran").exists(), said
    assert not (work / "held").exists(), said
    assert b"held back by a hook of the gateway" in upstream.requests[-1].body, said
    assert b"STEERING GUIDANCE" in upstream.requests[-1].body, said
