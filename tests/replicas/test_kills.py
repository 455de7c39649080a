"""What a client has received is in the database, whoever was killed: a gateway, or the database."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import httpx
import pytest

from gateway.testing import ScriptedUpstream
from tests.live.client import PLAIN, opening
from tests.live.incidents import until
from tests.live.test_killed import AGENTS, Client, reply
from tests.postgres import PostgresServer, new_folder, shared_server
from tests.replicas.config import shared
from tests.replicas.fleet import Fleet, InTurn, balancer
from tests.replicas.run_log import recorded

_PAUSE_S = 0.1
_STARTS = 100
_WORK_S = (0.1, 1.0)
"""From one kill to the next the agents work for so long, at random."""


class Agent(Client):
    """Makes a call again when its connection breaks. `apart`: while the database is away, gateways
    do not know what the others know, and a conversation goes on under another id."""

    apart = False
    broken = 0

    async def work(self, http: httpx.AsyncClient, url: str) -> None:
        while True:
            if not self.messages or self.messages[-1]["role"] == "assistant":
                self.task += 1
                self.messages = opening(f"Task {self.task} of {self.name}.")
                self.conversation = ""
            self.conversation = "" if self.apart else self.conversation
            try:
                await self._turn(http, url)
            except httpx.TransportError:
                self.broken += 1
                await asyncio.sleep(_PAUSE_S)


@asynccontextmanager
async def at_work(agents: list[Agent], url: str) -> AsyncIterator[None]:
    """The agents make calls meanwhile."""
    async with httpx.AsyncClient(timeout=60) as http:
        tasks = [asyncio.ensure_future(agent.work(http, url)) for agent in agents]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
    errors = [task.exception() for task in tasks if not task.cancelled()]
    assert errors == []


def check(agents: list[Agent], server: PostgresServer, url: str) -> int:
    """The number of answers that were received; each is recorded, and nothing was wrong."""
    assert [line for agent in agents for line in agent.wrong] == []
    received = {(f"{name}.0", step) for agent in agents for name, step in agent.received}
    assert received - recorded(server, url) == set()
    print(f"{len(received)} answers, {sum(agent.broken for agent in agents)} broken connections")
    return len(received)


@pytest.mark.nightly
@pytest.mark.parametrize("rounds", [50])
async def test_killed_gateways_lose_nothing(
    upstream: ScriptedUpstream, tmp_path: Path, database: str, rounds: int
) -> None:
    """Two behind a balancer: the other one goes on with every conversation."""
    upstream.default = reply
    upstream.requests = type(upstream.requests)(maxlen=1)
    agents = [Agent(f"agent {number}", streams=number % 2 == 1) for number in range(AGENTS)]
    draw = random.Random(3)
    with Fleet(tmp_path, {**shared(upstream, database), **PLAIN}, 2) as fleet:
        async with balancer(lambda: fleet.ports, InTurn()) as url, at_work(agents, url):
            for number in range(rounds):
                await asyncio.sleep(draw.uniform(*_WORK_S))
                await fleet.kill(number % 2)
    assert check(agents, shared_server(), database) > 10 * rounds


@pytest.mark.nightly
@pytest.mark.parametrize("rounds", [50])
async def test_a_killed_database_loses_nothing(
    upstream: ScriptedUpstream, tmp_path: Path, rounds: int
) -> None:
    """With `synchronous: full`. What comes meanwhile waits in the gateways, and is stored once."""
    shared_server()
    server = PostgresServer(new_folder(), "-c", "listen_addresses=")
    await asyncio.to_thread(server.start)
    upstream.default = reply
    upstream.requests = type(upstream.requests)(maxlen=1)
    agents = [Agent(f"agent {number}", streams=number % 2 == 1) for number in range(AGENTS)]
    for agent in agents:
        agent.apart = True
    draw = random.Random(5)
    url = server.url("postgres")
    quick = {"synchronous": "full", "commit_limit_ms": 500, "probe_interval_s": 0.2}
    try:
        with Fleet(tmp_path, {**shared(upstream, url, **quick), **PLAIN}, 2) as fleet:
            async with balancer(lambda: fleet.ports, InTurn()) as place, at_work(agents, place):
                for _ in range(rounds):
                    await asyncio.sleep(draw.uniform(*_WORK_S))
                    server.stop()
                    await asyncio.sleep(draw.uniform(*_WORK_S))
                    await asyncio.to_thread(start_again, server)
            await all_ready(fleet)
            check(agents, server, url)
    finally:
        server.stop()


async def all_ready(fleet: Fleet) -> None:
    """Wait until no gateway has anything that waits."""
    async with httpx.AsyncClient() as http:
        for gateway in fleet.gateways:

            async def ready(url: str = gateway.url) -> bool:
                return bool((await http.get(f"{url}/readyz")).json()["status"] == "ready")

            assert await until(ready)


def start_again(server: PostgresServer) -> None:
    """Start a killed server, as soon as the children of the last one are gone."""
    for _ in range(_STARTS):
        with suppress(OSError):
            return server.start()
        time.sleep(_PAUSE_S)
    server.start()
