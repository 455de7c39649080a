"""Credentials that agents meet: none is in what is read, asked, logged or stored."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from steering_gateway_testing import ReceivedRequest, Reply, ScriptedUpstream, ToolCall
from steering_gateway_testing.agents import TOOLS, opening
from steering_gateway_testing.processes import GatewayProcess
from tests.features.learning.reader.reading import MODEL, USED, asked, finished, opened, settings

LETTERS = "aB3dE5fG7hJ9kL1mN3pQ5rS7tU9vW1xY3zC5"
SHAPES: tuple[tuple[str, int], ...] = (
    *(("sk-proj-{}", 36), ("sk-ant-api03-{}", 36), ("ghp_{}", 36), ("github_pat_{}", 36)),
    *(("glpat-{}", 20), ("xoxb-123456789012-{}", 24), ("AKIA{}", 16), ("hf_{}", 34)),
    *(("AIza{}", 35), ("Authorization: Bearer {}", 36), ("DB_PASSWORD={}", 20)),
    *(("postgres://app:{}@db.internal/app", 20),),
)
"""Twelve shapes, with the length of what varies."""


def planted(number: int) -> tuple[str, str]:
    """A credential, and the part of it that must be found nowhere."""
    shape, length = SHAPES[number % len(SHAPES)]
    value = f"{number:03}{LETTERS[number % 7 :]}{LETTERS}"[:length]
    value = value.upper() if shape.startswith("AKIA") else value
    return shape.format(value), value


def deploying(request: ReceivedRequest) -> Reply:
    """A model whose calls fail, then work, with the credential in both; or the reader's, which
    repeats what it sees."""
    if request.json["model"] == MODEL:
        shown = json.loads(request.messages[1]["content"]).values()
        return Reply(" ".join(shown).strip()[-75:], usage=USED)
    turn = sum(m.get("role") == "assistant" for m in request.messages)
    task = request.messages[1]["content"]
    secret = task.partition("using ")[2]
    commands = ["python check.py", f"python deploy.py {secret}", "python other.py"]
    if turn >= len(commands):
        return Reply(f"Done with {secret}")
    return Reply("", tool_calls=(ToolCall("bash", {"command": commands[turn]}, id=f"c{turn}"),))


async def play(http: httpx.AsyncClient, url: str, number: int) -> None:
    """One run that meets a credential in its task, its calls and their results."""
    secret, _ = planted(number)
    why = secret if number % 2 else "no"
    results = [f"TypeError: {why}", f"Error: {secret} was refused", f"done with {why}"]
    messages: list[dict[str, Any]] = opening(f"Deploy number {number}, using {secret}")
    while True:
        body = {"model": "m", "messages": messages, "tools": TOOLS}
        answer = await http.post(f"{url}/chat/completions", json=body)
        answer.raise_for_status()
        message = answer.json()["choices"][0]["message"]
        messages.append(message)
        calls = message.get("tool_calls") or ()
        if not calls:
            return
        for call in calls:
            content = results[int(call["id"].removeprefix("c"))]
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": content})


def places(
    upstream: ScriptedUpstream, gateway: GatewayProcess, folder: Path
) -> Iterator[tuple[str, bytes]]:
    """Everything that stays: requests to the asked model, log lines, the files of the database."""
    yield "asked", b"".join(request.body for request in asked(upstream.requests))
    yield "log", "".join(gateway.lines).encode()
    for file in folder.glob("runs.db*"):
        yield file.name, file.read_bytes()


async def plant(folder: Path, count: int) -> None:
    with ScriptedUpstream(default=deploying) as upstream:
        config = settings(
            upstream, str(folder / "runs.db"), tokens_per_day=10**7, usd_per_day=1000.0
        )
        config["default_upstream"] = {"api_base": upstream.base_url, "api_key": "sk-any"}
        config["logging"] = {"level": "debug"}
        with GatewayProcess(
            folder, json.dumps(config), env={"GATEWAY_STEERING__MODE": "on"}
        ) as gateway:
            async with httpx.AsyncClient(timeout=120) as http:
                for number in range(count):
                    await play(http, gateway.base_url, number)
            async with opened(path=str(folder / "runs.db")) as stores:
                await finished(stores, count)
        assert asked(upstream.requests)
        for name, content in places(upstream, gateway, folder):
            assert content or name in ("asked", "runs.db-wal", "runs.db-shm")
            found = [planted(n)[0][:9] for n in range(count) if planted(n)[1].encode() in content]
            assert not found, (name, found[:5])


@pytest.mark.slow
async def test_no_planted_credential_stays(tmp_path: Path) -> None:
    """Each of 12 shapes twice, in tasks, calls and results: in no file, log line or question."""
    await plant(tmp_path, 24)


@pytest.mark.nightly
async def test_none_of_200_planted_credentials_stays(tmp_path: Path) -> None:
    """The same with 200."""
    await plant(tmp_path, 200)
