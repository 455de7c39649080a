"""Gateway processes behind a balancer do what one process does, also when some are killed."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from gateway.config import settings_from_dict
from gateway.testing import ScriptedUpstream
from tests.live.agents import read_runs
from tests.live.test_recorded_runs import DEVELOPMENT, SAMPLE, synthetic_runs
from tests.postgres import shared_server
from tests.replicas.config import one, shared
from tests.replicas.drives import FRAME, bodies_through
from tests.replicas.fleet import AtRandom, Fleet, InTurn, balancer
from tests.replicas.run_log import recorded

_KILL_S = (0.5, 3.0)
"""From one kill to the next, at random."""


async def kill_some(fleet: Fleet, kills: list[int]) -> None:
    """Kill one gateway after the other, at random moments, without end."""
    draw = random.Random(11)
    while True:
        await asyncio.sleep(draw.uniform(*_KILL_S))
        number = draw.randrange(len(fleet.gateways))
        await fleet.kill(number)
        kills.append(number)


@pytest.mark.nightly
@pytest.mark.parametrize("kills", [False, True], ids=["calm", "kills"])
@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize(("file", "every"), [(SAMPLE, 3), DEVELOPMENT], ids=["sample", "all"])
async def test_processes_send_what_one_sends(
    upstream: ScriptedUpstream,
    tmp_path: Path,
    database: str,
    file: Path,
    every: int,
    count: int,
    kills: bool,
) -> None:
    """Two behind a round-robin balancer and four behind a random one, with retries, and with
    kills: the same bytes at every call, every reading as offline, no allowance exceeded, and as
    much of the prompts in the caches of two deployments."""
    runs = [*read_runs(file)[::6], *synthetic_runs(3, 5)]
    alone = one(upstream, tmp_path)
    policy = settings_from_dict(alone).policy()
    with Fleet(tmp_path, alone, 1) as fleet:
        url = fleet.gateways[0].base_url
        expected, alone_drive = await bodies_through(
            upstream, runs, lambda: url, policy, kills=kills
        )
    (directory := tmp_path / "shared").mkdir()
    killed: list[int] = []
    with Fleet(directory, shared(upstream, database), count) as fleet:
        order = InTurn() if count == 2 else AtRandom()
        async with balancer(lambda: fleet.ports, order) as url:
            task = asyncio.ensure_future(kill_some(fleet, killed) if kills else asyncio.sleep(0))
            try:
                found, drive = await bodies_through(
                    upstream, runs, lambda: url, policy, kills=kills
                )
            finally:
                task.cancel()
                await asyncio.wait([task])
    calls = recorded(shared_server(), database)
    shares = alone_drive.cached_share, drive.cached_share
    print(
        f"{drive.report.requests} requests, {len(killed)} kills, {drive.broken} broken, "
        f"{len(calls)} recorded, cached share {shares[0]:.4f} and {shares[1]:.4f}"
    )
    assert len([body for bodies in expected.values() for body in bodies if FRAME in body]) > 20
    different = [which for which in expected if set(found[which]) != set(expected[which])]
    assert different == []
    assert abs(shares[1] - shares[0]) < 0.005
