"""Real clients whose sub-agent never ends, in `gateway wrap --sub-agents`: it is capped, and its
parent ends well; also with several at once, and overnight, with a login, or a client's own key,
that is used up.

They are found as in tests/features/wrap/test_real_clients.py. Seen to pass with Claude Code
2.1.332, Codex 0.171.0 and opencode 1.18.33.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from gateway.wire.message_identity import offered_tools
from steering_gateway_testing import ReceivedRequest, ScriptedUpstream
from steering_gateway_testing.patience import DEADLINE_MS, run_to_end
from steering_gateway_testing.values import Fault, FaultKind, Reply, ToolCall
from tests.features.wrap.test_real_clients import PATH, ROOT, WAIT_S
from tests.seats import hosts

pytestmark = pytest.mark.nightly

TASK = "MAIN-TASK: have helpers count the files, and say how many there are."
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
    "Agent": {"subagent_type": "general-purpose", "run_in_background": False},
    "task": {"subagent_type": "general"},
    "spawn_agent": {},
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Night:
    """The calls that each helper may make, the helpers, and after how many the login is used up."""

    cap: int
    helpers: int
    dry: int
    at_once: bool = False


NIGHTS = {
    "one helper": Night(cap=6, helpers=1, dry=3),
    "two helpers": Night(cap=8, helpers=2, dry=10),
    "three at once": Night(cap=5, helpers=3, dry=10, at_once=True),
}


@dataclass(slots=True)
class Greedy:
    """The model of all agents: the main one starts helpers, which only ever list the folder."""

    night: Night
    calls: Counter[str] = field(default_factory=Counter)
    last: str = ""

    def __call__(self, request: ReceivedRequest) -> Reply:
        tools = _tools(request.fields)
        if not tools:
            return Reply("A title")
        body = request.body.decode()
        if any(request.header(name) for name in HELPERS):
            helper = max(HELPER.findall(body), key=body.rindex)
            self.calls[helper] += 1
            name = next(name for name in SHELLS if name in tools)
            number = f"call_{self.calls[helper]}_of_{helper}"  # that no host gives twice
            return Reply(f"{said(helper)}.", tool_calls=(ToolCall(name, SHELLS[name], id=number),))
        self.last = body
        return self._main(tools)

    def _main(self, tools: set[str]) -> Reply:
        space = "collaboration" if "wait_agent" in tools else ""
        reported = [name for name in self.names if said(name) in self.last]
        started = self.calls["started"]
        if started < self.night.helpers and (self.night.at_once or len(reported) == started):
            number = self.night.helpers if self.night.at_once else 1
            new = self.names[started : started + number]
            self.calls["started"] += number
            name = next(name for name in STARTS if name in tools)
            calls = [ToolCall(name, _start(name, each), id=each, namespace=space) for each in new]
            return Reply("I ask helpers.", tool_calls=tuple(calls))
        if space and len(reported) < started and self.calls["waits"] < 20:
            self.calls["waits"] += 1
            wait = ToolCall("wait_agent", {"timeout_ms": 20_000}, namespace=space)
            return Reply("I wait.", tool_calls=(wait,))
        return Reply("All done.")

    @property
    def names(self) -> list[str]:
        """The helpers, by what their prompts and words begin with."""
        return [f"helper_{number}" for number in range(self.night.helpers)]


HELPER = re.compile(r"HELPER (helper_\d)")


def said(helper: str) -> str:
    """The words of a helper, which its report repeats."""
    return f"{helper} is listing"


def _start(tool: str, helper: str) -> dict[str, Any]:
    """The arguments of the call that starts a helper."""
    prompt = f"HELPER {helper}: count the files of this folder, and say how many there are."
    if tool == "spawn_agent":
        return {"message": prompt, "task_name": helper}
    return {**STARTS[tool], "description": f"count files {helper}", "prompt": prompt}


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
@pytest.mark.parametrize("night", NIGHTS.values(), ids=list(NIGHTS))
@pytest.mark.parametrize("name", CLIENTS)
def test_greedy_sub_agents_are_capped(
    name: str,
    night: Night,
    overnight: bool,
    upstream: ScriptedUpstream,
    other: ScriptedUpstream,
    tmp_path: Path,
) -> None:
    """So many calls of each helper, its report at the parent, status 0, and no main agent stopped.
    With a login that answers 429 after some calls, the key answers the others: no further call is
    sent to the login than were under way, and its token does not go elsewhere."""
    model = Greedy(night)
    other.default = upstream.default = model
    if overnight:
        served = 0

        def limited(request: ReceivedRequest) -> Reply | Fault:
            nonlocal served
            if _tools(request.fields):
                served += 1
            if served > night.dry:
                return Fault(FaultKind.RATE_LIMIT, retry_after="3600")
            return model(request)

        upstream.default = limited
    told = _run(CLIENTS[name], night, upstream, other, tmp_path)
    assert told["exit_status"] == 0, told["stderr"]
    assert "All done." in told["stdout"]  # the main agent's own last words
    assert [model.calls[helper] for helper in model.names] == [night.cap] * night.helpers
    stopped = f"Stopped by the gateway: {night.cap} of the {night.cap}-call budget is used"
    assert model.last.count(stopped) >= night.helpers
    reports = model.last[model.last.index(stopped) :]
    assert f"Last of {night.cap} calls" in reports, reports[:600]
    assert all(said(helper) in model.last for helper in model.names)
    went_on = [run["state"] for run in told["runs"] if not run["stopped"]]
    assert (went_on, len(told["runs"])) == (["END"], 1 + night.helpers)
    assert all(CLIENTS[name].token not in str(request.headers) for request in other.requests)
    if overnight:
        refused = [r for r in upstream.requests if _tools(r.fields)][night.dry :]
        under_way = night.helpers if night.at_once else 1
        assert 1 <= len(refused) <= under_way
        assert other.requests


def _run(
    client: Client,
    night: Night,
    upstream: ScriptedUpstream,
    other: ScriptedUpstream,
    home: Path,
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
    wrap = [sys.executable, "-m", "gateway", "wrap", "--json", "--sub-agents", str(night.cap)]
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
    return told | {"stderr": "\n".join(lines[-40:-1]), "stdout": ended.stdout}
