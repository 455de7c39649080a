"""Gateway processes behind a balancer do what one process does, also when some are killed."""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from gateway.config import settings_from_dict
from gateway.core.decision_settings import Policy
from steering_gateway_testing import ScriptedUpstream
from steering_gateway_testing.fleet import AtRandom, Fleet, InTurn, Order, balancer
from steering_gateway_testing.recorded_agents import Run, read_runs
from tests.live.test_recorded_runs import DEVELOPMENT, SAMPLE, synthetic_runs
from tests.postgres import shared_server
from tests.replicas.config import one, shared
from tests.replicas.drives import FRAME, Bodies, bodies_through
from tests.replicas.patterns import EAGER, store_patterns
from tests.replicas.run_log import given, recorded

_KILL_S = (0.5, 3.0)
"""From one kill to the next, at random."""


@dataclass(frozen=True, kw_only=True)
class Expected:
    """What one process sends: the digests of the bodies of each call, how many carry guidance, and
    the share of the prompts that was in a cache."""

    digests: dict[str, set[bytes]]
    guided: int
    cached_share: float


_known: dict[tuple[Path, int, bool], Expected] = {}
"""One process does the same for every number of gateways and every balancer."""


def digests_of(bodies: Bodies) -> dict[str, set[bytes]]:
    """By call; the bodies of all runs would take more than a gigabyte."""
    return {which: {hashlib.sha256(b).digest() for b in sent} for which, sent in bodies.items()}


async def expected_of(
    upstream: ScriptedUpstream, runs: list[Run], directory: Path, policy: Policy, *, kills: bool
) -> Expected:
    """What reaches the provider through one process with a file."""
    config = {**one(upstream, directory), **EAGER}
    store_patterns(directory, config)
    with Fleet(directory, config, 1) as fleet:
        url = fleet.gateways[0].base_url
        bodies, drive = await bodies_through(upstream, runs, lambda: url, policy, kills=kills)
    return Expected(
        digests=digests_of(bodies),
        guided=sum(FRAME in body for sent in bodies.values() for body in sent),
        cached_share=drive.cached_share,
    )


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
@pytest.mark.parametrize("balance", [InTurn, AtRandom], ids=["in turn", "at random"])
@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize(("file", "every"), [(SAMPLE, 3), DEVELOPMENT], ids=["sample", "all"])
async def test_processes_send_what_one_sends(
    upstream: ScriptedUpstream,
    tmp_path: Path,
    postgres_url: str,
    file: Path,
    every: int,
    count: int,
    balance: Callable[[], Order],
    kills: bool,
) -> None:
    """Two and four behind a round-robin and a random balancer, with retries, and with kills: the
    same bytes at every call, every reading as offline, no allowance exceeded, and as much of the
    prompts in the caches of two deployments."""
    runs = [*read_runs(file)[::every], *synthetic_runs(3, 5)]
    policy = settings_from_dict(one(upstream, tmp_path)).policy()
    if (expected := _known.get((file, every, kills))) is None:
        expected = await expected_of(upstream, runs, tmp_path, policy, kills=kills)
        _known[file, every, kills] = expected
    (directory := tmp_path / "shared").mkdir()
    killed: list[int] = []
    config = {**shared(upstream, postgres_url), **EAGER}
    store_patterns(directory, config)
    with Fleet(directory, config, count) as fleet:
        async with balancer(lambda: fleet.ports, balance()) as url:
            task = asyncio.ensure_future(kill_some(fleet, killed) if kills else asyncio.sleep(0))
            try:
                bodies, drive = await bodies_through(
                    upstream, runs, lambda: url, policy, kills=kills
                )
            finally:
                task.cancel()
                await asyncio.wait([task])
    calls, pieces = recorded(shared_server(), postgres_url), given(shared_server(), postgres_url)
    print(
        f"{len(runs)} runs, {drive.report.requests} requests, {len(killed)} kills, {drive.broken} "
        f"broken, {len(calls)} recorded, given {pieces}, cached share "
        f"{expected.cached_share:.4f} and {drive.cached_share:.4f}"
    )
    assert expected.guided > 20
    assert {"e1", "e2", "e3", "monitor"} <= pieces.keys()
    found = digests_of(bodies)
    assert [
        which for which in expected.digests if found.get(which) != expected.digests[which]
    ] == []
    assert found.keys() == expected.digests.keys()
    assert abs(drive.cached_share - expected.cached_share) < 0.005
