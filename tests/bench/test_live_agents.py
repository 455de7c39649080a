"""The live kit with real agents: Claude Code and mini-swe-agent against the scripted provider.

Seen to pass with Claude Code 2.1.332 and mini-swe-agent 2.4.6. They are found on the path and in
`~/.cache/gateway-seats`: `python -m venv mini-swe-agent`, then its `pip install mini-swe-agent`.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from bench.live import results
from bench.live.__main__ import main
from tests.seats.seats import PATH

pytestmark = pytest.mark.nightly

MINI = Path.home() / ".cache/gateway-seats/mini-swe-agent/bin"
AGENTS = {
    "claude-code": ("claude", "anthropic/claude-sonnet-4-5", "ANTHROPIC_API_KEY"),
    "mini-swe-agent": ("mini", "openai/gpt-4o-mini", "OPENAI_API_KEY"),
}
KEY = "made-up-key-of-a-real-agent"


@pytest.mark.parametrize("agent", AGENTS)
def test_a_real_agent_is_compared(
    agent: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It solves one task in both arms and one with guidance only; tokens and cost are known."""
    program, model, key_name = AGENTS[agent]
    monkeypatch.setenv("PATH", os.pathsep.join([PATH, str(MINI)]))
    monkeypatch.setenv(key_name, KEY)
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not installed")
    words = ["run", "--dry", "--k", "1", "--agent", agent, "--model", model]
    out = tmp_path / "out"
    assert main([*words, "--tasks", "renamed-option,greeting", "--out", str(out)]) == 0
    found = results.read(out)
    assert {(d.trial.arm, d.trial.task.partition("/")[2]): d.solved for d in found.done} == {
        ("off", "greeting"): True,
        ("on", "greeting"): True,
        ("off", "renamed-option"): False,
        ("on", "renamed-option"): True,
    }
    assert not any(d.error for d in found.done)
    assert all(d.spent.usd and d.agent_version != "unknown" for d in found.done)
    files = [path for path in out.rglob("*") if path.is_file()]
    assert [path for path in files if KEY.encode() in path.read_bytes()] == []
