"""A program that tries every way past its budget, wrapped and before a server with an admin key."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import asyncpg
import httpx
import pytest

from steering_gateway_testing import Reply, ScriptedUpstream, Usage
from steering_gateway_testing.processes import GatewayProcess
from tests.features.wrap.test_wrap import WAIT_S, environment, wrapped
from tests.postgres import new_database

ATTACK = Path(__file__).with_name("attack.py")
KEY = "operators-key-" + "a" * 30
_AS_NOBODY = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
CALLS = 4  # of $0.05: 20,000 tokens of input to gpt-4o
USAGE = Usage(prompt_tokens=20_000, completion_tokens=0)


def went_through(found: dict[str, Any]) -> list[tuple[str, Any]]:
    """What a model answered, by the way that brought it there."""
    return [(way, name) for way, made in found.items() for name, came in made if came is True]


def paid(upstream: ScriptedUpstream) -> int:
    """Calls that reached the provider, but for files, which cost nothing."""
    return sum(request.path != "/v1/files" for request in upstream.requests)


@pytest.mark.slow
def test_a_wrapped_program_tries_every_way(upstream: ScriptedUpstream, tmp_path: Path) -> None:
    """It ends at its budget, with its own exit status, though its database is gone at the end."""
    upstream.default = Reply("done", usage=USAGE)
    state = {"XDG_STATE_HOME": str(tmp_path / "state"), "USER": "agent"}
    ran = wrapped(
        tmp_path, upstream, "--budget", "0.20", "--", sys.executable, str(ATTACK), **state
    )
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout.splitlines()[-1])
    assert "$0.20 of $0.20" in ran.stderr
    assert went_through(found) == []
    assert any("budget_accounts" in str(came) for _, came in found["rows"])
    assert paid(upstream) == CALLS


@pytest.fixture
def home() -> Iterator[Path]:
    """A folder that every user of the machine may look into, as /home and /srv are."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.mark.slow
@pytest.mark.parametrize("user", ["same", "nobody"])
def test_a_client_of_a_server_tries_every_way(
    upstream: ScriptedUpstream, home: Path, user: str
) -> None:
    """It ends at its budget. Another user cannot read the operator's keys where the config is
    private, nor change the database."""
    if user == "nobody" and os.getuid() != 0:
        pytest.skip("only root starts a program as another user")
    upstream.default = Reply("done", usage=USAGE)
    budget = {"name": "daily", "scope": "tenant", "limits": {"usd": 0.20}}
    config = {
        "storage": {"path": str(home / "server.db")},
        "auth": {"admin_key": KEY},
        "budgets": [budget],
        "default_upstream": {"api_base": upstream.base_url, "api_key": "sk-operators"},
    }
    with GatewayProcess(home, json.dumps(config)) as server:
        server.config.chmod(0o600)
        env = {**environment(home, upstream), "OPENAI_BASE_URL": f"{server.url}/v1"}
        env |= {"GATEWAY_CONFIG": str(server.config)}
        words = [sys.executable, "-c", ATTACK.read_text()]
        if user == "nobody":
            python = os.path.realpath(sys.executable)
            words = [*_AS_NOBODY, python, *words[1:]]
            env |= {"PYTHONPATH": os.pathsep.join(sys.path)}
        ran = subprocess.run(
            words,
            env=env,
            cwd=home,
            input=f"{KEY} sk-operators",
            capture_output=True,
            text=True,
            timeout=WAIT_S,
            check=False,
        )
        assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout.splitlines()[-1])
    if user == "nobody":
        assert found["secrets"] == []
        assert {came for name, came in found["rows"] if name != "call"} <= {"OperationalError"}
        done = {came for name, came in found["database_files"] if name != "call"}
        assert done <= {"PermissionError", "FileNotFoundError"}
    assert went_through(found) == []
    assert paid(upstream) == CALLS


async def test_rows_of_postgresql_that_were_changed_raise_nothing(
    upstream: ScriptedUpstream, home: Path
) -> None:
    """By a program that may write to the gateway's database."""
    upstream.default = Reply("done", usage=USAGE)
    url = new_database()
    config = {
        "storage": {"url": url},
        "auth": {"admin_key": KEY},
        "budgets": [{"name": "daily", "scope": "tenant", "limits": {"usd": 0.20}}],
        "default_upstream": {"api_base": upstream.base_url, "api_key": "sk-operators"},
    }
    with GatewayProcess(home, json.dumps(config)) as server:
        async with httpx.AsyncClient(base_url=server.base_url, timeout=WAIT_S) as http:
            for number in range(CALLS + 1):
                last = await ask(http, f"task {number}")
            assert last.status_code == 429
            connection = await asyncpg.connect(url)
            await connection.execute("DELETE FROM admin_keys")
            await connection.execute(
                "UPDATE budget_accounts SET limits = '{\"usd\": 100.0}', lifted = true, "
                "usd = 0, calls = 0, version = version + 1"
            )
            assert (await ask(http, "after the rows were changed")).status_code == 429
            await connection.execute("DELETE FROM budget_accounts")
            await connection.execute("DELETE FROM run_controls")
            assert (await ask(http, "after the rows were deleted")).status_code == 429
            await connection.close()
    assert paid(upstream) == CALLS


async def ask(http: httpx.AsyncClient, task: str) -> httpx.Response:
    """The answer to one call."""
    body = {"model": "gpt-4o", "messages": [{"role": "user", "content": task}]}
    return await http.post("/chat/completions", json=body)
