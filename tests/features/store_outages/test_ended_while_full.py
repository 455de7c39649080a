"""A gateway that ends while nothing can be written says how much is lost, before and after."""

from __future__ import annotations

import asyncio
import json
import signal
from pathlib import Path
from typing import Any

import httpx
import pytest

from steering_gateway_testing import ScriptedUpstream
from steering_gateway_testing.agents import PLAIN, Agent, opening, worker
from steering_gateway_testing.outages import fill_up, locked
from steering_gateway_testing.patience import until_async
from steering_gateway_testing.processes import GatewayProcess

CALLS = 3
TURNS = 6  # of each agent on a full disk, whose last pages may still take some


def config(upstream: ScriptedUpstream, path: Path, **storage: Any) -> str:
    quick = {"commit_limit_ms": 250, "busy_timeout_ms": 100, "probe_interval_s": 0.05}
    found = {
        **PLAIN,
        "default_upstream": {"api_base": upstream.base_url},
        "storage": {"path": str(path), **quick, **storage},
    }
    return json.dumps(found)


async def waiting(http: httpx.AsyncClient, url: str) -> dict[str, Any]:
    found: dict[str, Any] = (await http.get(f"{url}/readyz")).json()
    return found


async def ended(gateway: GatewayProcess) -> tuple[int, str, int]:
    """The exit status, the line on standard error, and the number that the log has."""
    gateway.process.send_signal(signal.SIGTERM)
    status = await asyncio.to_thread(gateway.end)
    said = [line for line in gateway.lines if not line.startswith("{")]
    gateway.lines = [line for line in gateway.lines if line.startswith("{")]
    logged = gateway.events("records are lost: the store cannot be written")
    return status, "".join(said).strip(), sum(line["records"] for line in logged)


@pytest.mark.slow
async def test_what_is_in_memory_only_is_lost_and_said(
    upstream: ScriptedUpstream, http: httpx.AsyncClient, tmp_path: Path
) -> None:
    """On the page beforehand; at the end in the log, on standard error and by the exit status."""
    upstream.default = worker(9)
    path = tmp_path / "runs.db"
    settings = config(upstream, path, spool_path=None)
    with GatewayProcess(tmp_path, settings, env={"GATEWAY_STEERING__MODE": "on"}) as gateway:
        agent = Agent(http, gateway.base_url)
        await agent.run(1)
        page = (await http.get(f"{gateway.url}/dashboard/health")).text
        assert "when the database is away" in page
        assert "are lost if" not in page
        with locked(path):
            await agent.run(CALLS)
            found = await waiting(http, gateway.url)
            assert (found["waiting"], found["waiting_on_disk"]) == (CALLS, 0)
            assert found["room_lasts_s"] > 0
            page = (await http.get(f"{gateway.url}/dashboard")).text
            assert f"{CALLS} are in memory only: they are lost if the gateway ends now" in page
            assert "more at today's rate" in page
            status, said, logged = await ended(gateway)
    assert (status, logged) == (1, CALLS)
    assert said == f"gateway: {CALLS} records lost: storage and its spool cannot be written"


@pytest.mark.slow
async def test_a_gateway_that_loses_nothing_ends_with_0(
    upstream: ScriptedUpstream, http: httpx.AsyncClient, tmp_path: Path
) -> None:
    """What waits on disk is not lost."""
    upstream.default = worker(9)
    path = tmp_path / "runs.db"
    env = {"GATEWAY_STEERING__MODE": "on"}
    with GatewayProcess(tmp_path, config(upstream, path), env=env) as gateway:
        agent = Agent(http, gateway.base_url)
        await agent.run(1)
        with locked(path):
            await agent.run(CALLS)
            await until_async(lambda: on_disk(http, gateway.url, CALLS))
            assert await ended(gateway) == (0, "", 0)


async def on_disk(http: httpx.AsyncClient, url: str, records: int) -> bool:
    return (await waiting(http, url)).get("waiting_on_disk") == records


@pytest.mark.slow
async def test_a_full_disk(
    upstream: ScriptedUpstream, http: httpx.AsyncClient, tmp_path: Path, small_disk: Path
) -> None:
    """The file and its spool are on it: every call is answered; what the end loses is what the page
    said, and the rest is stored by the next gateway when there is room."""
    upstream.default = worker(40)
    path = small_disk / "runs.db"
    env = {"GATEWAY_STEERING__MODE": "on"}
    with GatewayProcess(tmp_path, config(upstream, path), env=env) as gateway:
        agents = [Agent(http, gateway.base_url, opening(f"Task {n}.")) for n in range(4)]
        for agent in agents:
            await agent.run(1, "x" * 20_000)
        await asyncio.to_thread(fill_up, small_disk / "filler")
        answers = [await agent.run(TURNS, "x" * 20_000) for agent in agents]
        assert [a.status for each in answers for a in each] == [200] * 4 * TURNS
        found = await waiting(http, gateway.url)
        status, said, logged = await ended(gateway)
    assert found["status"] == "degraded"
    assert logged == found["waiting"] - found["waiting_on_disk"] > 0
    assert status == 1
    assert said.startswith(f"gateway: {logged} records lost")
    await asyncio.to_thread((small_disk / "filler").unlink)
    with GatewayProcess(tmp_path, config(upstream, path), env=env) as gateway:
        await until_async(lambda: recorded(http, gateway.url, 4 * (1 + TURNS) - logged))


async def recorded(http: httpx.AsyncClient, url: str, calls: int) -> bool:
    listed = (await http.get(f"{url}/api/runs")).json().get("runs", [])
    return sum(run["totals"]["calls"] for run in listed) == calls
