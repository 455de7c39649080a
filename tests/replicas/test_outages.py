"""Whatever happens to the database, every request is answered, and every answer is recorded."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from steering_gateway_testing import ScriptedUpstream
from steering_gateway_testing.agents import PLAIN
from steering_gateway_testing.fleet import Fleet
from steering_gateway_testing.outages import OUTAGES, SMALL, small_folder
from steering_gateway_testing.postgres import PostgresServer, new_folder
from tests.live.test_killed import AGENTS, reply
from tests.postgres import shared_server
from tests.replicas.agents import Agent, all_ready, answers, at_work, check
from tests.replicas.config import shared

_ANSWERS = 3 * AGENTS
"""Before the outage, in it, and after it the agents receive so many."""

_DEGRADED = "the store is degraded: answers go on, their records wait in memory"
_WORKS = "the store works again"
_KINDS = {"read-only": "read_only", "full": "full"}
"""What the gateway calls an outage that has one form only."""


@pytest.fixture
def server(request: pytest.FixtureRequest) -> Iterator[PostgresServer]:
    """A server of the test's own; with `True` one that has little room, where that can be made."""
    shared_server()
    with ExitStack() as stack:
        try:
            folder = stack.enter_context(small_folder()) if request.param else new_folder()
        except OSError as error:
            pytest.skip(str(error))
        server = PostgresServer(folder, *SMALL)
        stack.callback(server.stop)
        server.start()
        yield server


@pytest.mark.slow
@pytest.mark.parametrize(
    ("server", "outage"),
    [
        (False, "stopped"),
        (False, "killed"),
        (False, "frozen"),
        (False, "read-only"),
        (True, "full"),
        (True, "log full"),
    ],
    indirect=["server"],
)
async def test_an_outage_harms_no_request(
    upstream: ScriptedUpstream, tmp_path: Path, server: PostgresServer, outage: str
) -> None:
    """Each answer is right and comes over an unbroken connection; the records that waited are
    stored once. With `synchronous: full`: a database that is killed loses nothing either."""
    upstream.default = reply
    upstream.requests = type(upstream.requests)(maxlen=1)
    agents = [Agent(f"agent {number}", streams=number % 2 == 1) for number in range(AGENTS)]
    url = server.url("postgres")
    storage = {"synchronous": "full", "commit_limit_ms": 500, "probe_interval_s": 0.2}
    config = {**shared(upstream, url, **storage), **PLAIN}
    with Fleet(tmp_path, config, 1) as fleet:
        (gateway,) = fleet.gateways
        async with at_work(agents, gateway.base_url):
            await answers(agents, _ANSWERS)
            with OUTAGES[outage](server):
                await asyncio.to_thread(gateway.wait_for, _DEGRADED)
                await answers(agents, _ANSWERS)
            await answers(agents, _ANSWERS)
        await all_ready(fleet)
        ends = gateway.events(_WORKS)
    if outage in _KINDS:
        assert _KINDS[outage] in [each["kind"] for each in ends]
    assert sum(agent.broken for agent in agents) == 0
    assert check(agents, server, url) >= 3 * _ANSWERS
    assert sum(each["written"] for each in ends) > 0
    assert [each["dropped"] for each in ends] == [0] * len(ends)
