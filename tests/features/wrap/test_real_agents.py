"""Real agents end cleanly when a budget stops them, by an error and by an answer.

They are found as `tests/features/wrap/test_real_clients.py` finds them, and wrapped by the gateway.
Seen to pass with Claude Code 2.1.197, Codex 0.169.0 and opencode 1.18.33. (mini-swe-agent 2.4.6
sends any 429 ten times again, over six minutes; it ends at once with `control.stop_status: 401`.)
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from steering_gateway_testing import ScriptedUpstream
from tests.features.wrap.test_real_clients import AGENTS, WAIT_S, model, wrapped

pytestmark = pytest.mark.nightly

ROOM = 2
ASKED_S = 15
"""How long a person thinks: longer than the time between two pings."""


@pytest.mark.parametrize("ending", ["error", "answer"])
@pytest.mark.parametrize("name", ["claude", "codex", "opencode"])
def test_it_ends_by_itself(
    name: str, ending: str, upstream: ScriptedUpstream, tmp_path: Path
) -> None:
    """No call of the run goes out beyond its limit; told by an answer, it shows what that says."""
    upstream.default = model(AGENTS[name])
    budget = {"name": "per-run", "scope": "run", "limits": {"calls": ROOM}, "stop_with": ending}
    ended = wrapped(name, upstream, tmp_path, GATEWAY_BUDGETS=json.dumps([budget])).run()
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
    upstream.default = model(AGENTS[name])
    ladder = [{"at": 1.0, "do": "ask"}]
    budget = {"name": "per-run", "scope": "run", "limits": {"calls": ROOM}, "ladder": ladder}
    started = wrapped(
        name,
        upstream,
        tmp_path,
        GATEWAY_STORAGE__PATH=str(tmp_path / "gateway.db"),
        GATEWAY_BUDGETS=json.dumps([budget]),
        GATEWAY_CONTROL__ASK_WAIT_S="12" if verb == "nobody" else "120",
    )

    def told(*words: str) -> str:
        ran = subprocess.run(
            [sys.executable, "-m", "gateway", *words],
            env=started.env,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        return ran.stdout

    with subprocess.Popen(
        started.command,
        env=started.env,
        cwd=started.folder,
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
