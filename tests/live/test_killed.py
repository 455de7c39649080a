"""A gateway killed under load has stored every step whose answer a client received."""

from __future__ import annotations

import asyncio
import json
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import apsw
import httpx
import orjson
import pytest

from steering_gateway_testing import ReceivedRequest, Reply, ScriptedUpstream, ToolCall
from steering_gateway_testing.agents import PLAIN, TOOLS, Message, opening
from steering_gateway_testing.outages import locked
from steering_gateway_testing.patience import DEADLINE_MS, until_ready
from steering_gateway_testing.processes import GatewayProcess

AGENTS = 8
TURNS = 25
"""After so many an agent begins another conversation."""

DEGRADED = "the store is degraded: answers go on, their records wait in memory"
ENVIRONMENT = {"GATEWAY_STEERING__MODE": "on"}


def reply(request: ReceivedRequest) -> Reply:
    """A turn of a long run; the same request always gets the same reply."""
    turn = sum(m["role"] == "assistant" for m in request.messages)
    task = request.messages[1]["content"]
    if turn >= TURNS:
        return Reply(f"Done: {task}")
    call = ToolCall("bash", {"command": f"step {turn}"}, id=f"call_{turn}")
    return Reply(f"Turn {turn} of {task}", tool_calls=(call,), chunk_delay_s=0.001)


@dataclass
class Client:
    """One agent; `received` has the (conversation, step) of its complete answers. `named`: it
    sends an id of its own with each call of a conversation."""

    name: str
    streams: bool
    named: bool = False
    task: int = 0
    messages: list[Message] = field(default_factory=list)
    received: list[tuple[str, int]] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    conversation: str = ""

    async def work(self, http: httpx.AsyncClient, url: str) -> None:
        """Make calls until the gateway is gone."""
        while True:
            self._begin()
            try:
                await self._turn(http, url)
            except httpx.TransportError:
                return

    def _begin(self) -> None:
        """Begin another task where the last one has its answer."""
        if not self.messages or self.messages[-1]["role"] == "assistant":
            self.task += 1
            self.messages = opening(f"Task {self.task} of {self.name}.")
            self.conversation = ""

    async def _turn(self, http: httpx.AsyncClient, url: str) -> None:
        body = {"model": "m", "messages": self.messages, "tools": TOOLS, "stream": self.streams}
        content, ended, place = b"", False, f"{url}/chat/completions"
        headers = (
            {"x-conversation-id": f"{self.name}/{self.task}".replace(" ", "-")}
            if self.named
            else {}
        )
        async with http.stream("POST", place, json=body, headers=headers) as answer:
            try:
                async for chunk in answer.aiter_bytes():
                    content += chunk
                ended = True
            except httpx.TransportError:
                if not content.rstrip().endswith(b"[DONE]"):
                    raise
        self._check(answer)
        self.received.append((self.conversation, int(answer.headers["x-gateway-step"])))
        self._take(content)
        if not ended:
            raise httpx.ReadError("the gateway is gone")

    def _check(self, answer: httpx.Response) -> None:
        """Check that step and conversation are those that follow from the history."""
        turn = sum(m["role"] == "assistant" for m in self.messages)
        headers = answer.headers
        home = headers.get("x-gateway-conversation-id", "")
        found = (answer.status_code, headers.get("x-gateway-step"))
        if found != (200, str(turn)) or (self.conversation and home != self.conversation):
            self.wrong.append(f"{self.name}, turn {turn}: {found} in {home}")
        self.conversation = home

    def _take(self, content: bytes) -> None:
        turn = sum(m["role"] == "assistant" for m in self.messages)
        body = orjson.dumps({"messages": self.messages})
        request = ReceivedRequest(method="POST", target="/", headers=[], connection=0)
        request.body = body
        said = reply(request)
        assert said.content is not None
        if not self.streams:
            assert orjson.loads(content)["choices"][0]["message"]["content"] == said.content
        self.messages.append({"role": "assistant", "content": said.content})
        if said.tool_calls:
            call = said.tool_calls[0]
            function = {"name": call.name, "arguments": call.text}
            calls = [{"id": call.id, "type": "function", "function": function}]
            self.messages[-1]["tool_calls"] = calls
            self.messages.append({"role": "tool", "tool_call_id": call.id, "content": f"{turn}"})


def recorded(path: Path) -> set[tuple[str, int]]:
    """The (conversation, step) of every call in the file, which must be intact."""
    with apsw.Connection(str(path)) as connection:
        assert connection.pragma("integrity_check") == "ok"
        rows = connection.execute(
            "SELECT runs.id, step_index FROM steps JOIN runs ON runs.pk = run_pk "
            "WHERE call IS NOT NULL"
        )
        found = [(str(run).rpartition(".")[0], int(index)) for run, index in rows]
        steps: list[Any] = connection.execute(
            "SELECT run_pk, count(*), max(step_index) FROM steps GROUP BY run_pk"
        ).fetchall()
    assert len(found) == len(set(found))
    # No step is missing between a run's first and its newest.
    assert [count for _, count, _ in steps] == [newest + 1 for _, _, newest in steps]
    return set(found)


async def _answered(clients: list[Client], more: int) -> None:
    """Wait for so many complete answers, however long they take on a busy machine."""
    wanted = sum(len(client.received) for client in clients) + more
    async with asyncio.timeout(120):
        while sum(len(client.received) for client in clients) < wanted:  # noqa: ASYNC110
            await asyncio.sleep(0.002)


async def kill_again_and_again(rounds: int, upstream: ScriptedUpstream, directory: Path) -> int:
    """The number of complete answers; each is checked to be recorded."""
    upstream.default = reply
    upstream.requests = type(upstream.requests)(maxlen=1)
    database = directory / "gateway.db"
    config = {
        **PLAIN,
        "default_upstream": {"api_base": upstream.base_url},
        # What waits for a slow store is in memory: a busy machine is not to look like one.
        "storage": {"path": str(database), "commit_limit_ms": DEADLINE_MS},
    }
    clients = [Client(f"agent {number}", streams=number % 2 == 1) for number in range(AGENTS)]
    draw = random.Random()
    for number in range(rounds):
        with GatewayProcess(directory, json.dumps(config), env=ENVIRONMENT) as gateway:
            async with httpx.AsyncClient(timeout=120) as http:
                work = asyncio.gather(*(c.work(http, gateway.base_url) for c in clients))
                await _answered(clients, draw.randint(10, 60))
                await asyncio.sleep(draw.uniform(0, 0.02))
                gateway.process.kill()
                await work
        assert [line for client in clients for line in client.wrong] == [], f"round {number}"
        lost = {entry for client in clients for entry in client.received} - recorded(database)
        assert not lost, f"round {number}"
    return sum(len(client.received) for client in clients)


@pytest.mark.slow
async def test_a_few_kills(upstream: ScriptedUpstream, tmp_path: Path) -> None:
    """Two kills at random moments: no received answer is missing, and runs continue."""
    assert await kill_again_and_again(2, upstream, tmp_path) > 0


@pytest.mark.nightly
async def test_fifty_kills(upstream: ScriptedUpstream, tmp_path: Path) -> None:
    """Fifty kills at random moments: no received answer is missing, and runs continue."""
    answers = await kill_again_and_again(50, upstream, tmp_path)
    print(f"{answers} answers")
    assert answers > 1000


@pytest.mark.slow
@pytest.mark.parametrize("named", [True, False])
async def test_kills_while_the_file_is_locked(
    upstream: ScriptedUpstream, tmp_path: Path, named: bool
) -> None:
    """Calls are answered while nothing can be stored, the gateway is killed, and all is stored
    when the next one starts: their conversations keep their ids over the outage and the kill."""
    upstream.default = reply
    upstream.requests = type(upstream.requests)(maxlen=1)
    database = tmp_path / "gateway.db"
    storage = {"commit_limit_ms": 250, "probe_interval_s": 0.1, "spool_limit_ms": DEADLINE_MS}
    config = json.dumps(
        {
            **PLAIN,
            "default_upstream": {"api_base": upstream.base_url},
            "storage": {"path": str(database), "busy_timeout_ms": 200, **storage},
        }
    )
    clients = [
        Client(f"agent {number}", streams=number % 2 == 1, named=named) for number in range(4)
    ]
    for _ in range(3):
        with GatewayProcess(tmp_path, config, env=ENVIRONMENT) as gateway:
            async with httpx.AsyncClient(timeout=120) as http:
                work = asyncio.gather(*(c.work(http, gateway.base_url) for c in clients))
                await _answered(clients, 12)
                with locked(database):
                    await asyncio.to_thread(gateway.wait_for, DEGRADED)
                    await _answered(clients, 40)
                    gateway.process.kill()
                    await work
    with GatewayProcess(tmp_path, config, env=ENVIRONMENT) as gateway:
        async with httpx.AsyncClient() as http:
            await until_ready(http, gateway.url)
    received = {entry for client in clients for entry in client.received}
    print(f"{len(received)} answers, {len(received - recorded(database))} missing")
    assert [line for client in clients for line in client.wrong] == []
    assert not received - recorded(database)
    assert len(received) >= 3 * 52
