"""Real clients whose sub-agent never ends, in `gateway wrap --sub-agents`: it is capped, and its
parent ends well; also overnight, with a login, or a client's own key, that is used up.

They are found as in tests/features/wrap/test_real_clients.py. Seen to pass with Claude Code
2.1.332, Codex 0.171.0 and opencode 1.18.33.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from gateway.wire.messages import offered_tools
from steering_gateway_testing import ReceivedRequest, ScriptedUpstream
from steering_gateway_testing.patience import DEADLINE_MS, run_to_end
from steering_gateway_testing.values import Fault, FaultKind, Reply, ToolCall
from tests.features.wrap.test_real_clients import PATH, ROOT, WAIT_S
from tests.seats import hosts

pytestmark = pytest.mark.nightly

TASK = "MAIN-TASK: have a helper count the files, and say how many there are."
PROMPT = "Count the files of this folder, and say how many there are."
CALLS = 6
KEY = "sk-operators-own-key"
QUIET = {"DISABLE_AUTOUPDATER": "1", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1"}
OPENCODE = {
    "OPENCODE_DISABLE_AUTOUPDATE": "1",
    "OPENCODE_PERMISSION": '{"bash": "allow", "task": "allow"}',
}
SHELLS: dict[str, Any] = {
    "Bash": {"command": "ls", "description": "list"},
    "bash": {"command": "ls", "description": "list"},
    "exec_command": {"cmd": "ls"},
    "exec": 'text((await tools.exec_command({cmd: "ls"})).output);',
}
STARTS: dict[str, Any] = {
    "Agent": {
        "description": "count files",
        "prompt": PROMPT,
        "subagent_type": "general-purpose",
        "run_in_background": False,
    },
    "task": {"description": "count files", "prompt": PROMPT, "subagent_type": "general"},
    "spawn_agent": {"message": PROMPT, "task_name": "count_files"},
}
HELPERS = ("x-claude-code-agent-id", "x-openai-subagent", "x-parent-session-id")


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """A client: its command, what it has to log in with, and the model that a key buys."""

    command: tuple[str, ...]
    env: Mapping[str, str]
    login: Mapping[str, str]
    fallback: str
    token: str


CLIENTS = {
    "claude": Client(
        command=("claude", "-p", TASK, "--allowedTools", "Bash", "Agent"),
        env={**QUIET, "ANTHROPIC_BASE_URL": "{url}"},
        login={"CLAUDE_CODE_OAUTH_TOKEN": hosts.OAUTH_TOKEN},
        fallback="anthropic/claude-haiku-4-5",
        token=hosts.OAUTH_TOKEN,
    ),
    "codex": Client(
        command=(
            *("codex", "exec", "--skip-git-repo-check"),
            *("--dangerously-bypass-approvals-and-sandbox", TASK),
        ),
        env={"OPENAI_BASE_URL": "{url}/v1"},
        login={"CODEX_API_KEY": "sk-clients-own-key"},
        fallback="openai/gpt-4o-mini",
        token="sk-clients-own-key",
    ),
    "opencode": Client(
        command=("opencode", "run", TASK),
        env={**OPENCODE, "ANTHROPIC_BASE_URL": "{url}"},
        login={"ANTHROPIC_API_KEY": "sk-clients-own-key"},
        fallback="anthropic/claude-haiku-4-5",
        token="sk-clients-own-key",
    ),
}


@dataclass(slots=True)
class Greedy:
    """The model of all agents: the main one starts a helper, which only ever lists the folder."""

    calls: Counter[str] = field(default_factory=Counter)
    last: str = ""

    def __call__(self, request: ReceivedRequest) -> Reply:
        tools = _tools(request.fields)
        if not tools:
            return Reply("A title")
        if any(request.header(name) for name in HELPERS):
            self.calls["helper"] += 1
            name = next(name for name in SHELLS if name in tools)
            number = f"call_of_helper_{self.calls['helper']}"  # that no host gives twice
            return Reply("Listing.", tool_calls=(ToolCall(name, SHELLS[name], id=number),))
        self.calls["main"] += 1
        self.last = request.body.decode()
        space = "collaboration" if "wait_agent" in tools else ""
        if self.calls["main"] == 1:
            name = next(name for name in STARTS if name in tools)
            call = ToolCall(name, STARTS[name], namespace=space)
            return Reply("I ask a helper.", tool_calls=(call,))
        if space and "Stopped by the gateway" not in self.last and self.calls["main"] < 9:
            wait = ToolCall("wait_agent", {"timeout_ms": 20_000}, namespace=space)
            return Reply("I wait.", tool_calls=(wait,))
        return Reply("All done.")


def _tools(body: Mapping[str, Any]) -> set[str]:
    """The names of the tools of a request, those of namespaces too."""
    listed = list(offered_tools(body))
    inner = [tool for each in listed for tool in each.get("tools") or ()]
    found = [each.get("function") or each for each in [*listed, *inner]]
    return {str(each.get("name")) for each in found}


@pytest.fixture
def other() -> Iterator[ScriptedUpstream]:
    """The host that is asked with the operator's key."""
    with ScriptedUpstream() as upstream:
        yield upstream


@pytest.mark.parametrize("overnight", [False, True], ids=["capped", "login used up"])
@pytest.mark.parametrize("name", CLIENTS)
def test_a_greedy_sub_agent_is_capped(
    name: str, overnight: bool, upstream: ScriptedUpstream, other: ScriptedUpstream, tmp_path: Path
) -> None:
    """Six calls of the helper, its report at the parent, status 0, and no main agent stopped. With
    a login that answers 429 from the fourth call on, the key answers the others: no further call is
    sent to the login, and its token does not go elsewhere."""
    model = Greedy()
    other.default = upstream.default = model
    if overnight:
        served = 0

        def limited(request: ReceivedRequest) -> Reply | Fault:
            nonlocal served
            if _tools(request.fields):
                served += 1
            return Fault(FaultKind.RATE_LIMIT, retry_after="3600") if served > 3 else model(request)

        upstream.default = limited
    told = _run(CLIENTS[name], upstream, other, tmp_path)
    assert told["exit_status"] == 0, told["stderr"]
    assert model.calls["helper"] == CALLS
    assert "Stopped by the gateway: 6 of the 6-call budget is used" in model.last
    report = model.last[model.last.index("Stopped by the gateway") :][:600]
    assert "Last of 6 calls" in report, report
    stopped = [run for run in told["runs"] if run.get("stopped")]
    assert len(stopped) <= 1
    assert all(CLIENTS[name].token not in str(request.headers) for request in other.requests)
    if overnight:
        refused = [r for r in upstream.requests if _tools(r.fields)]
        assert len(refused) == 4
        assert other.requests


def _run(
    client: Client, upstream: ScriptedUpstream, other: ScriptedUpstream, home: Path
) -> dict[str, Any]:
    """The summary of the wrapped client; skips where it is not installed."""
    program = shutil.which(client.command[0], path=PATH)
    if program is None:
        pytest.skip(f"{client.command[0]} is not installed")
    work = home / "work"
    work.mkdir()
    base = other.url if client.fallback.startswith("anthropic") else other.base_url
    params = {"model": client.fallback, "api_base": base, "api_key": KEY}
    config = {
        "model_list": [{"model_name": "by-key", "litellm_params": params}],
        "router": {"fallbacks": [{"*": ["by-key"]}]},
    }
    (home / "gateway.json").write_text(json.dumps(config))
    given = {**client.env, **client.login}
    env = {
        "PATH": PATH + os.pathsep + os.environ["PATH"],
        "HOME": str(home),
        "TERM": "dumb",
        "PYTHONPATH": str(ROOT),
        "XDG_STATE_HOME": str(home / "state"),
        "GATEWAY_STEERING__DEADLINE_MS": str(DEADLINE_MS),
        **{name: value.replace("{url}", upstream.url) for name, value in given.items()},
    }
    wrap = [sys.executable, "-m", "gateway", "wrap", "--json", "--sub-agents", str(CALLS)]
    config_path = str(home / "gateway.json")
    command = [*wrap, "--config", config_path, "--", program, *client.command[1:]]
    ended = run_to_end(command, env, work, WAIT_S)
    lines = ended.stderr.splitlines()
    assert lines, ended.stdout[-2000:]
    try:
        told: dict[str, Any] = json.loads(lines[-1])
    except ValueError:
        raise AssertionError(ended.stderr[-3000:]) from None
    assert ended.returncode == told["exit_status"], ended.stderr[-3000:]
    return told | {"stderr": "\n".join(lines[-40:-1])}
