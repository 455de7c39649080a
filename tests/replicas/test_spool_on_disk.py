"""What waits for a database survives `kill -9` of the gateway, and is stored once, in order."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.testing import ScriptedUpstream
from tests.live.client import PLAIN
from tests.live.incidents import until
from tests.live.test_killed import reply
from tests.postgres import PostgresServer, new_folder, shared_server
from tests.replicas.agents import Agent, answers, at_work, check
from tests.replicas.config import shared
from tests.replicas.fleet import Fleet
from tests.replicas.outages import start_again

_QUICK = {"commit_limit_ms": 500, "probe_interval_s": 0.1, "spool_limit_ms": 60_000}
_DEGRADED = "the store is degraded: answers go on, their records wait in memory"
_LEFT = "records of a gateway that ended are stored now"


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    """A server of the test's own."""
    shared_server()
    server = PostgresServer(new_folder(), "-c", "listen_addresses=")
    server.start()
    yield server
    server.stop()


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
    return {**shared(upstream, server.url("postgres"), **_QUICK, **storage), **PLAIN}


async def all_stored(fleet: Fleet) -> None:
    """Wait until nothing waits in any gateway, in memory or on disk."""
    async with httpx.AsyncClient() as http:
        for gateway in fleet.gateways:

            async def nothing_waits(url: str = gateway.url) -> bool:
                lines = (await http.get(f"{url}/metrics")).text.splitlines()
                return "gateway_store_waiting_records 0.0" in lines

            assert await until(nothing_waits)


def files(folder: Path) -> list[Path]:
    """The files in which records wait."""
    return sorted(folder.glob("gateway-*/gateway-spool/*"))


def in_order(server: PostgresServer) -> bool:
    """Whether the steps of each run have the order of the calls."""
    rows = server.execute(
        "SELECT count(*) FROM (SELECT at, lag(at) OVER (PARTITION BY run_pk ORDER BY step_index) "
        "AS before FROM steps) AS s WHERE at < before"
    )
    return rows == "0"


@pytest.mark.parametrize(
    ("synchronous", "by"), [("normal", signal.SIGINT), ("full", signal.SIGKILL)]
)
async def test_a_killed_gateway_loses_nothing_that_waits(
    upstream: ScriptedUpstream,
    tmp_path: Path,
    server: PostgresServer,
    agents: list[Agent],
    synchronous: str,
    by: signal.Signals,
) -> None:
    """PostgreSQL ends, calls are answered, the gateway is killed; both are started again."""
    with Fleet(tmp_path, config_of(upstream, server, synchronous=synchronous), 1) as fleet:
        (gateway,) = fleet.gateways
        async with at_work(agents, gateway.base_url):
            await answers(agents, 8)
            server.stop(by)
            await asyncio.to_thread(gateway.wait_for, _DEGRADED)
            await answers(agents, 12)
            gateway.process.kill()
        await asyncio.to_thread(gateway.end)
        assert files(tmp_path)
        gateway.close()
        gateway.lines.clear()
        await asyncio.to_thread(start_again, server)
        await asyncio.to_thread(gateway.__enter__)
        await all_stored(fleet)
        assert check(agents, server, server.url("postgres")) >= 20
        assert in_order(server)
        left = gateway.events(_LEFT)
        assert sum(each["records"] for each in left) >= 12
        assert await until(lambda: asyncio.sleep(0, not files(tmp_path)))
