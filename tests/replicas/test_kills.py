"""What a client has received is in the database, whoever was killed: a gateway, or the database."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from steering_gateway_testing import ScriptedUpstream
from steering_gateway_testing.agents import PLAIN
from steering_gateway_testing.fleet import Fleet, InTurn, balancer
from steering_gateway_testing.outages import start_again
from steering_gateway_testing.postgres import PostgresServer, new_folder
from tests.live.test_killed import AGENTS, reply
from tests.postgres import shared_server
from tests.replicas.agents import Agent, all_ready, at_work, check
from tests.replicas.config import shared

_WORK_S = (0.1, 1.0)
"""From one kill to the next the agents work for so long, at random."""


@pytest.mark.nightly
@pytest.mark.parametrize("rounds", [50])
async def test_killed_gateways_lose_nothing(
    upstream: ScriptedUpstream, tmp_path: Path, postgres_url: str, rounds: int
) -> None:
    """Two behind a balancer: the other one goes on with every conversation."""
    upstream.default = reply
    upstream.requests = type(upstream.requests)(maxlen=1)
    agents = [Agent(f"agent {number}", streams=number % 2 == 1) for number in range(AGENTS)]
    draw = random.Random(3)
    with Fleet(tmp_path, {**shared(upstream, postgres_url), **PLAIN}, 2) as fleet:
        async with balancer(lambda: fleet.ports, InTurn()) as url, at_work(agents, url):
            for number in range(rounds):
                await asyncio.sleep(draw.uniform(*_WORK_S))
                await fleet.kill(number % 2)
    assert check(agents, shared_server(), postgres_url) > 10 * rounds


@pytest.mark.nightly
@pytest.mark.parametrize("rounds", [50])
@pytest.mark.parametrize("named", [True, False])
async def test_a_killed_database_loses_nothing(
    upstream: ScriptedUpstream, tmp_path: Path, rounds: int, named: bool
) -> None:
    """With `synchronous: full`. What comes meanwhile waits in the gateways, and is stored once."""
    shared_server()
    server = PostgresServer(new_folder(), "-c", "listen_addresses=")
    await asyncio.to_thread(server.start)
    upstream.default = reply
    upstream.requests = type(upstream.requests)(maxlen=1)
    agents = [Agent(f"agent {number}", streams=number % 2 == 1) for number in range(AGENTS)]
    for agent in agents:
        agent.apart, agent.named = not named, named
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
