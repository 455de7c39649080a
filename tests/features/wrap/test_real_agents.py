"""Real agents end cleanly when a budget stops them, by an error and by an answer.

They are found as `tests/features/wrap/test_real_clients.py` finds them, and wrapped by the gateway.
Seen to pass with Claude Code 2.1.197, Codex 0.169.0 and opencode 1.18.33. (mini-swe-agent 2.4.6
sends any 429 ten times again, over six minutes; it ends at once with `control.stop_status: 401`.)
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from steering_gateway_testing import ScriptedUpstream
from tests.features.wrap.test_real_clients import AGENTS, PATH, ROOT, model
from tests.patience import DEADLINE_MS

pytestmark = pytest.mark.nightly

ROOM = 2
ASKED_S = 15
"""How long a person thinks: longer than the time between two pings."""
WAIT_S = 200
"""Longest time that an agent may take to give up; what each needs is far less."""


@pytest.mark.parametrize("ending", ["error", "answer"])
@pytest.mark.parametrize("name", ["claude", "codex", "opencode"])
def test_it_ends_by_itself(
    name: str, ending: str, upstream: ScriptedUpstream, tmp_path: Path
) -> None:
    """No call of the run goes out beyond its limit; told by an answer, it shows what that says."""
    agent = AGENTS[name]
    program = shutil.which(agent.command[0], path=PATH)
    if program is None:
        pytest.skip(f"{agent.command[0]} is not installed")
    upstream.default = model(agent)
    (tmp_path / "work").mkdir()
    budget = {"name": "per-run", "scope": "run", "limits": {"calls": ROOM}, "stop_with": ending}
    env = {
        "PATH": PATH,
        "HOME": str(tmp_path),
        "TERM": "dumb",
        "PYTHONPATH": str(ROOT),
        "OPENAI_BASE_URL": upstream.base_url,
        "OPENAI_API_KEY": "sk-client",
        "ANTHROPIC_API_KEY": "sk-client",
        "GATEWAY_STEERING__DEADLINE_MS": str(DEADLINE_MS),
        "GATEWAY_BUDGETS": json.dumps([budget]),
        **agent.env,
    }
    ended = subprocess.run(
        [sys.executable, "-m", "gateway", "wrap", "--json", "--", program, *agent.command[1:]],
        env=env,
        cwd=tmp_path / "work",
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    calling = [r for r in upstream.requests if r.fields.get("tools")]
    print(name, ending, "status", ended.returncode, "calls", len(calling))
    print(ended.stdout[-600:], ended.stderr[-600:])
    assert len(calling) == ROOM
    if ending == "answer":
        shown = ended.stdout + ended.stderr
        assert "Stopped by the gateway" in shown


VERBS = ["approve", "deny", "nobody"]


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("name", ["claude", "codex", "opencode"])
def test_it_waits_for_an_answer(
    name: str, verb: str, upstream: ScriptedUpstream, tmp_path: Path
) -> None:
    """The agent sees one slow call: after a yes it works on to its end, else it ends at once."""
    agent = AGENTS[name]
    program = shutil.which(agent.command[0], path=PATH)
    if program is None:
        pytest.skip(f"{agent.command[0]} is not installed")
    upstream.default = model(agent)
    (tmp_path / "work").mkdir()
    ladder = [{"at": 1.0, "do": "ask"}]
    budget = {"name": "per-run", "scope": "run", "limits": {"calls": ROOM}, "ladder": ladder}
    env = {
        "PATH": PATH,
        "HOME": str(tmp_path),
        "TERM": "dumb",
        "PYTHONPATH": str(ROOT),
        "OPENAI_BASE_URL": upstream.base_url,
        "OPENAI_API_KEY": "sk-client",
        "ANTHROPIC_API_KEY": "sk-client",
        "GATEWAY_STEERING__DEADLINE_MS": str(DEADLINE_MS),
        "GATEWAY_STORAGE__PATH": str(tmp_path / "gateway.db"),
        "GATEWAY_BUDGETS": json.dumps([budget]),
        "GATEWAY_CONTROL__ASK_WAIT_S": "12" if verb == "nobody" else "120",
        **agent.env,
    }
    gateway = [sys.executable, "-m", "gateway"]

    def told(*words: str) -> str:
        ran = subprocess.run(
            [*gateway, *words], env=env, cwd=tmp_path, capture_output=True, text=True, check=False
        )
        return ran.stdout

    with subprocess.Popen(
        [*gateway, "wrap", "--json", "--", program, *agent.command[1:]],
        env=env,
        cwd=tmp_path / "work",
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        stdin=subprocess.DEVNULL,
    ) as running:
        answered, began = 0, time.monotonic()
        while verb != "nobody" and running.poll() is None and time.monotonic() < began + WAIT_S:
            for line in told("runs", "held", "--json").splitlines():
                held = json.loads(line)
                if held["action"] == "ask":
                    time.sleep(ASKED_S)
                    told("runs", verb, held["subject"], "--reason", "by the test")
                    answered += 1
        shown, _ = running.communicate(timeout=WAIT_S)
    calling = [r for r in upstream.requests if r.fields.get("tools") or r.fields.get("input")]
    print(name, verb, "status", running.returncode, "calls", len(calling), "answers", answered)
    print(f"{time.monotonic() - began:.0f} s", shown[-900:])
    if verb == "approve":
        assert len(calling) > ROOM
    else:
        assert len(calling) == ROOM
        assert "Stopped by the gateway" in shown
