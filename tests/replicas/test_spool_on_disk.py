"""What waits for a database survives `kill -9` of the gateway, and is stored once, in order."""

from __future__ import annotations

import asyncio
import json
import random
import signal
from pathlib import Path
from typing import Any

import httpx
import pytest

from steering_gateway_testing import ScriptedUpstream
from steering_gateway_testing.agents import PLAIN
from steering_gateway_testing.fleet import Fleet, InTurn, balancer
from steering_gateway_testing.outages import start_again
from steering_gateway_testing.patience import until_async
from steering_gateway_testing.postgres import PostgresServer
from tests.examples import by_day
from tests.live.test_killed import reply
from tests.replicas.agents import Agent, answers, at_work, check
from tests.replicas.config import shared

_QUICK = {"commit_limit_ms": 500, "probe_interval_s": 0.1, "spool_limit_ms": 60_000}
_DEGRADED = "the store is degraded: answers go on, their records wait in memory"
_LEFT = "records of a gateway that ended are stored now"


@pytest.fixture
def agents(upstream: ScriptedUpstream) -> list[Agent]:
    """Every second one streams."""
    upstream.default = reply
    upstream.requests = type(upstream.requests)(maxlen=1)
    agents = [Agent(f"agent {number}", streams=number % 2 == 1) for number in range(4)]
    for agent in agents:
        agent.apart = True
    return agents


def config_of(upstream: ScriptedUpstream, server: PostgresServer, **storage: Any) -> dict[str, Any]:
    return {**shared(upstream, server.url("postgres"), **(_QUICK | storage)), **PLAIN}


async def all_stored(fleet: Fleet) -> None:
    """Wait until nothing waits in any gateway, in memory or on disk."""
    async with httpx.AsyncClient() as http:
        for gateway in fleet.gateways:

            async def nothing_waits(url: str = gateway.url) -> bool:
                lines = (await http.get(f"{url}/metrics")).text.splitlines()
                return "gateway_store_waiting_records 0.0" in lines

            await until_async(nothing_waits)


def files(folder: Path) -> list[Path]:
    """The files in which records wait."""
    return sorted(folder.glob("gateway-*/gateway-spool/*"))


async def killed(fleet: Fleet, number: int) -> None:
    """End a gateway with `kill -9`."""
    gateway = fleet.gateways[number]
    gateway.process.kill()
    await asyncio.to_thread(gateway.end)
    gateway.close()
    gateway.lines.clear()


def in_order(server: PostgresServer) -> bool:
    """Whether the steps of each run have the order of the calls."""
    rows = server.execute(
        "SELECT count(*) FROM (SELECT at, lag(at) OVER (PARTITION BY run_pk ORDER BY step_index) "
        "AS before FROM steps) AS s WHERE at < before"
    )
    return rows == "0"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("synchronous", "by"), by_day([("normal", signal.SIGINT), ("full", signal.SIGKILL)], 1)
)
async def test_a_killed_gateway_loses_nothing_that_waits(
    upstream: ScriptedUpstream,
    tmp_path: Path,
    server: PostgresServer,
    agents: list[Agent],
    synchronous: str,
    by: signal.Signals,
) -> None:
    """PostgreSQL ends, calls are answered, the gateway is killed; both are started again, and the
    conversations go on under the ids that they had before."""
    for agent in agents:
        agent.apart, agent.named = False, by is signal.SIGKILL
    # A read that a busy machine holds up for longer than the limit gives its call a new id.
    config = config_of(upstream, server, synchronous=synchronous, commit_limit_ms=10_000)
    with Fleet(tmp_path, config, 1) as fleet:
        (gateway,) = fleet.gateways
        async with at_work(agents, gateway.base_url):
            await answers(agents, 8)
            server.stop(by)
            await asyncio.to_thread(gateway.wait_for, _DEGRADED)
            await answers(agents, 12)
            await killed(fleet, 0)
        assert files(tmp_path)
        await asyncio.to_thread(start_again, server)
        await asyncio.to_thread(gateway.__enter__)
        async with at_work(agents, gateway.base_url):
            await answers(agents, 12)
        await all_stored(fleet)
        assert check(agents, server, server.url("postgres")) >= 32
        assert in_order(server)
        left = gateway.events(_LEFT)
        assert sum(each["records"] for each in left) >= 12
        await until_async(lambda: not files(tmp_path))


@pytest.mark.slow
async def test_the_database_is_killed_while_what_waited_is_stored(
    upstream: ScriptedUpstream, tmp_path: Path, server: PostgresServer, agents: list[Agent]
) -> None:
    """Again and again, with the gateway: what was stored before is recognised."""
    draw = random.Random(1)
    with Fleet(tmp_path, config_of(upstream, server, synchronous="full"), 1) as fleet:
        (gateway,) = fleet.gateways
        async with at_work(agents, gateway.base_url):
            await answers(agents, 4)
            server.stop()
            await asyncio.to_thread(gateway.wait_for, _DEGRADED)
            await answers(agents, 150)
            await killed(fleet, 0)
        for _ in range(3):
            await asyncio.to_thread(start_again, server)
            await asyncio.to_thread(gateway.__enter__)
            await asyncio.sleep(draw.uniform(0, 0.1))
            server.stop()
            await killed(fleet, 0)
        await asyncio.to_thread(start_again, server)
        await asyncio.to_thread(gateway.__enter__)
        await all_stored(fleet)
        assert check(agents, server, server.url("postgres")) >= 154
        assert in_order(server)


@pytest.mark.slow
async def test_gateways_that_share_a_folder(
    upstream: ScriptedUpstream, tmp_path: Path, server: PostgresServer, agents: list[Agent]
) -> None:
    """One takes over what another left behind, without a restart of its own."""
    folder = {"spool_path": str(tmp_path / "shared")}
    config = config_of(upstream, server, synchronous="full", **folder)
    with Fleet(tmp_path, config, 2) as fleet:
        first, second = fleet.gateways
        here, there = agents[:2], agents[2:]
        async with at_work(here, first.base_url), at_work(there, second.base_url):
            await answers(agents, 8)
            server.stop()
            for gateway in fleet.gateways:
                await asyncio.to_thread(gateway.wait_for, _DEGRADED)
            await answers(here, 6)
            await answers(there, 6)
            await killed(fleet, 0)
            await asyncio.to_thread(second.wait_for, _LEFT)
            await answers(there, 2)
            await asyncio.to_thread(start_again, server)
        fleet.gateways.remove(first)
        await all_stored(fleet)
        assert check(agents, server, server.url("postgres")) >= 22
        assert in_order(server)


@pytest.mark.slow
async def test_a_gateway_that_stops_says_what_waits_on_disk(
    upstream: ScriptedUpstream, tmp_path: Path, server: PostgresServer, agents: list[Agent]
) -> None:
    """Not that it is lost; `/readyz` and the metrics count it."""
    with Fleet(tmp_path, config_of(upstream, server), 1) as fleet:
        (gateway,) = fleet.gateways
        async with at_work(agents, gateway.base_url):
            await answers(agents, 4)
            server.stop(signal.SIGINT)
            await asyncio.to_thread(gateway.wait_for, _DEGRADED)
            await answers(agents, 4)
        async with httpx.AsyncClient() as http:
            ready = (await http.get(f"{gateway.url}/readyz")).json()
        assert ready["waiting"] >= ready["waiting_on_disk"] >= 4
        gateway.process.send_signal(signal.SIGTERM)
        await asyncio.to_thread(gateway.end, 60)
        gateway.close()
        events = [*map(json.loads, gateway.lines)]
        (said,) = [each for each in events if each["event"].startswith("records wait on disk")]
        assert said["records"] >= ready["waiting_on_disk"]
        assert said["path"] == str(tmp_path / "gateway-0" / "gateway-spool")
        assert not [each for each in events if each["event"].startswith("records are lost")]
        gateway.lines.clear()
        await asyncio.to_thread(start_again, server)
        await asyncio.to_thread(gateway.__enter__)
        await all_stored(fleet)
        check(agents, server, server.url("postgres"))


@pytest.mark.nightly
@pytest.mark.parametrize("rounds", [24])
async def test_kills_of_both_lose_nothing(
    upstream: ScriptedUpstream,
    tmp_path: Path,
    server: PostgresServer,
    agents: list[Agent],
    rounds: int,
) -> None:
    """Two gateways with one folder and their database, killed at random, together or apart."""
    draw = random.Random(11)
    folder = {"spool_path": str(tmp_path / "shared"), "start_wait_s": 60}
    config = config_of(upstream, server, synchronous="full", **folder)
    with Fleet(tmp_path, config, 2) as fleet:
        async with balancer(lambda: fleet.ports, InTurn()) as url, at_work(agents, url):
            for number in range(rounds):
                await asyncio.sleep(draw.uniform(0.1, 1.0))
                server.stop()
                await asyncio.sleep(draw.uniform(0.1, 1.5))
                first = number % 2
                if draw.random() < 0.5:  # it starts before its database does
                    await killed(fleet, first)
                    await asyncio.gather(
                        asyncio.to_thread(fleet.gateways[first].__enter__),
                        asyncio.to_thread(start_again, server),
                    )
                else:
                    await asyncio.to_thread(start_again, server)
                    await asyncio.sleep(draw.uniform(0, 0.3))
                    await fleet.kill(first)
        await all_stored(fleet)
        assert check(agents, server, server.url("postgres")) > 5 * rounds
