"""Money that real agents spend at a host that bills, beside the sums that the gateway tells of it.

They are found on the path, in the folders that DIALECT_AGENTS names (npm's `.bin`), and in the
environments below the folder that GATEWAY_CLIENT_ENVS names. Without them: `test_billed.py`.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from gateway.backends import open_stores
from gateway.config.storage import StorageSettings
from gateway.stores.filters import RunFilter
from gateway.stores.lists import PageRequest
from gateway.stores.usage import BUCKET_S, UsageQuery
from steering_gateway_testing import ScriptedUpstream, ToolCall
from steering_gateway_testing.patience import DEADLINE_MS, run_to_end
from tests.clients.billing import STEPS, TASK, BillingHost

pytestmark = pytest.mark.nightly
reports = pytest.importorskip("gateway.features.reports.week")

ROOT = Path(__file__).parents[2]
ENVS = Path(os.environ.get("GATEWAY_CLIENT_ENVS", "-"))
PATH = os.pathsep.join(
    [
        os.environ.get("DIALECT_AGENTS", ""),
        *(str(each / "bin") for each in ENVS.glob("*")),
        os.environ["PATH"],
    ]
)
LIMIT_S = 300
"""Longest run of an agent."""
LOCAL_PRICES = {"LITELLM_LOCAL_MODEL_COST_MAP": "True"}
"""What keeps LiteLLM from waiting for a price list that it downloads."""
OPENAI_ALONE = {"ANTHROPIC_API_KEY": "", "GEMINI_API_KEY": ""}


@dataclass(frozen=True, slots=True)
class Agent:
    """One agent's command, and what it needs besides a key.

    `files`: below its home, in which `@BASE@` is the address of the gateway's `/v1`; `before`: a
    line of a shell that sets it up; `plain`: it has no tools; `last`: the call that ends its
    task."""

    command: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    before: str = ""
    plain: bool = False
    last: ToolCall | None = None


PI = {
    "baseUrl": "@BASE@",
    "api": "openai-completions",
    "apiKey": "OPENAI_API_KEY",
    "models": [{"id": "gpt-5.4"}],
}
CONTINUE = """name: own
version: 1.0.0
schema: v1
models:
  - name: own
    provider: openai
    model: gpt-4.1
    apiBase: "@BASE@"
    apiKey: sk-client
    roles: [chat]
"""
OPENCODE_ENV = {"OPENCODE_DISABLE_AUTOUPDATE": "1", "OPENCODE_PERMISSION": '{"bash": "allow"}'}
GEMINI_KEY = '{"security": {"auth": {"selectedType": "gemini-api-key"}}}'
COPILOT_ENV = {
    "COPILOT_OFFLINE": "true",
    "COPILOT_PROVIDER_API_KEY": "sk-client",
    "COPILOT_MODEL": "gpt-5.4",
}
AGENTS = {
    "claude": Agent(("claude", "-p", TASK, "--allowedTools", "Bash"), {"DISABLE_AUTOUPDATER": "1"}),
    "codex": Agent(
        (
            *("codex", "exec", "--skip-git-repo-check"),
            *("--dangerously-bypass-approvals-and-sandbox", TASK),
        )
    ),
    "opencode": Agent(("opencode", "run", TASK), OPENCODE_ENV),
    "opencode at OpenAI": Agent(("opencode", "run", TASK), {**OPENCODE_ENV, **OPENAI_ALONE}),
    "gemini": Agent(
        ("gemini", "--yolo", "--skip-trust", "-p", TASK),
        {"GEMINI_TELEMETRY_ENABLED": "false"},
        {".gemini/settings.json": GEMINI_KEY},
    ),
    "qwen": Agent(("qwen", "--yolo", "--auth-type", "openai", "-p", TASK)),
    "copilot": Agent(
        ("copilot", "-p", TASK, "--allow-all-tools", "--no-auto-update", "--no-color"), COPILOT_ENV
    ),
    "pi": Agent(
        ("pi", "--provider", "own", "--model", "gpt-5.4", "-p", TASK),
        files={".pi/agent/models.json": json.dumps({"providers": {"own": PI}})},
    ),
    "continue": Agent(
        ("cn", "--config", "continue.yaml", "--auto", "-p", TASK),
        files={"work/continue.yaml": CONTINUE},
    ),
    "cline": Agent(
        ("cline", "-P", "openai-native", "-m", "gpt-5.4", TASK),
        before='cline auth -p openai-native -k sk-client -m gpt-5.4 -b "$OPENAI_BASE_URL"',
    ),
    "aider": Agent(
        (
            *("aider", "--yes-always", "--no-git", "--no-check-update"),
            *("--no-show-model-warnings", "--analytics-disable", "--no-pretty", "--message", TASK),
        ),
        LOCAL_PRICES,
        plain=True,
    ),
    "mini-swe-agent": Agent(
        ("mini", "-y", "--exit-immediately", "-m", "openai/gpt-5.4", "-t", TASK),
        {"MSWEA_CONFIGURED": "true", "MSWEA_SILENT_STARTUP": "1", **LOCAL_PRICES},
        last=ToolCall("bash", {"command": "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"}),
    ),
    "llm": Agent(("llm", "prompt", TASK), plain=True),
    "gptme": Agent(("gptme", "--non-interactive", "--tool-format", "tool", TASK), OPENAI_ALONE),
}


@pytest.mark.parametrize("cuts", [False, True], ids=["whole", "cut"])
@pytest.mark.parametrize("name", AGENTS)
def test_what_an_agent_paid_is_in_every_sum(
    name: str,
    cuts: bool,
    upstream: ScriptedUpstream,
    tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> None:
    """Tokens and dollars of the week, of the runs, by client, over time and in the summary of
    `gateway wrap` are those of the host's ledger, titles and calls after a 429 among them. Of an
    answer that breaks off the host reported nothing: its part of the sums is estimated."""
    agent = AGENTS[name]
    if shutil.which(agent.command[0], path=PATH) is None:
        pytest.skip(f"{agent.command[0]} is not installed")
    host = upstream.default = BillingHost(agent.plain, agent.last, cuts)
    status, err = _ran(agent, upstream, tmp_path)
    told: dict[str, Any] = json.loads(err.splitlines()[-1])
    sums = asyncio.run(_sums(told, tmp_path / ".local/state/steering-gateway/gateway.db"))
    owed = host.owed()
    models = sorted({each.model for each in host.billed})
    figures = {"models": models, "side": host.side, "cut": host.cut, "usd": told["cost_usd"]}
    record_property("paid", json.dumps({**figures, "owed": owed, "sums": sums}))
    assert told["calls"] >= owed["calls"]
    if not cuts:
        assert host.billed
        assert status == told["exit_status"] == 0, err[-3000:]
        assert told["cost_usd"] == pytest.approx(host.usd(), rel=1e-9)
        assert told["steps"] == (0 if agent.plain else STEPS)
        assert host.refused == 1
    for place, found in sums.items():
        assert found == pytest.approx(owed, rel=1e-9), place


def _ran(agent: Agent, upstream: ScriptedUpstream, home: Path) -> tuple[int, str]:
    """The agent's task in `gateway wrap`: its exit status, and what it wrote to stderr."""
    (home / "work").mkdir()
    lines = ["#!/bin/sh", "unset PYTHONPATH"]  # its own libraries, not those of the gateway
    for path, text in agent.files.items():
        (home / path).parent.mkdir(parents=True, exist_ok=True)
        (home / f"{path}.in").write_text(text)
        lines.append(f'sed "s|@BASE@|$OPENAI_BASE_URL|" "{home / path}.in" > "{home / path}"')
    script = home / agent.command[0]
    program = shutil.which(agent.command[0], path=PATH)
    script.write_text("\n".join([*lines, agent.before, f'exec "{program}" "$@"', ""]))
    script.chmod(0o755)
    env = {
        "PATH": PATH,
        "HOME": str(home),
        "TERM": "dumb",
        "PYTHONPATH": str(ROOT),
        "OPENAI_BASE_URL": upstream.base_url,
        "ANTHROPIC_BASE_URL": upstream.url,
        "GOOGLE_GEMINI_BASE_URL": upstream.url,
        "COPILOT_PROVIDER_BASE_URL": upstream.base_url,
        "OPENAI_API_KEY": "sk-client",
        "ANTHROPIC_API_KEY": "sk-client",
        "GEMINI_API_KEY": "sk-client",
        "GATEWAY_STEERING__DEADLINE_MS": str(DEADLINE_MS),
        **agent.env,
    }
    gateway = [sys.executable, "-m", "gateway", "wrap", "--json", "--mode", "on", "--"]
    ended = run_to_end(
        [*gateway, str(script), *agent.command[1:]],
        {key: value for key, value in env.items() if value},
        home / "work",
        LIMIT_S,
    )
    return ended.returncode, ended.stderr


async def _sums(told: Mapping[str, Any], database: Path) -> dict[str, dict[str, float]]:
    """Each place where the gateway tells sums, with what it tells."""
    stores = await open_stores(StorageSettings(path=str(database)))
    try:
        monday = reports.monday_of(None, time.time() + BUCKET_S["week"])
        query = UsageQuery(since=monday, until=monday + BUCKET_S["week"], bucket="week")
        week = await reports.read_week(stores, monday, None)
        runs = (await stores.runs.list_runs(RunFilter(), PageRequest())).runs
        points = await stores.runs.usage(query)
    finally:
        await stores.close()
    found: dict[str, list[Mapping[str, Any]]] = {
        "wrap": [run["totals"] for run in told["runs"]],
        "week": [structs.asdict(week["now"])],
        "runs": [structs.asdict(run.totals) for run in runs],
        "over time": [asdict(point) for point in points],
    }
    for name, (groups, _) in week["parts"].items():
        found[f"week, by {name}"] = [asdict(group.sums) for group in groups]
    return {name: _reported(rows) for name, rows in found.items()}


def _reported(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """The sums of rows of totals, without what is estimated in them."""

    def total(*names: str) -> float:
        return sum(row[name] or 0 for row in rows for name in names)

    guesses = [
        row["estimated"]
        if "estimated" in row
        else {"tokens": row["estimated_tokens"], "cost_usd": row["estimated_usd"]}
        for row in rows
    ]
    return {
        "calls": total("calls") - total("errors"),
        "cached_tokens": total("cached_tokens"),
        "tokens": total("input_tokens", "output_tokens")
        - sum(guess.get("tokens", 0) for guess in guesses),
        "cost_usd": total("cost_usd") - sum(guess.get("cost_usd", 0) for guess in guesses),
    }
