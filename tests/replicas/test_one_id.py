"""A client's id names its conversation, whatever happens to the database and to gateways."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
import pytest

from gateway.steering.identity import conversation_id
from steering_gateway_testing import ScriptedUpstream
from steering_gateway_testing.fleet import Fleet, InTurn, balancer
from steering_gateway_testing.named_agents import Named, Provider
from steering_gateway_testing.outages import OUTAGES
from steering_gateway_testing.postgres import PostgresServer
from tests.replicas.agents import all_ready
from tests.replicas.config import shared
from tests.replicas.patterns import EAGER
from tests.replicas.run_log import recorded

TENANT = "default"
_DEGRADED = "the store is degraded: answers go on, their records wait in memory"
_TURNS = 3
_AGENTS = 4
_BRANCHES = "SELECT id, coalesce(parent_id, ''), external_key FROM conversations ORDER BY id"


@pytest.fixture
def provider(upstream: ScriptedUpstream) -> Provider:
    """Keeps where guidance was."""
    upstream.default = provider = Provider()
    upstream.requests = type(upstream.requests)(maxlen=1)
    return provider


def conversations(server: PostgresServer) -> list[tuple[str, ...]]:
    """The id, parent and client's id of every stored conversation."""
    return [tuple(line.split("|")) for line in server.execute(_BRANCHES).splitlines()]


async def both_work(fleet: Fleet, agents: list[Named], url: str) -> None:
    """Each agent makes calls, in turn at the gateways."""
    limits = httpx.Limits(max_keepalive_connections=0)
    async with httpx.AsyncClient(timeout=120, limits=limits) as http:
        await asyncio.gather(*[agent.work(http, url, _TURNS) for agent in agents])


@pytest.mark.slow
@pytest.mark.parametrize("kills", [False, True], ids=["", "killed"])
@pytest.mark.parametrize("outage", ["stopped", "frozen", "read-only"])
async def test_no_id_is_split(
    upstream: ScriptedUpstream,
    provider: Provider,
    tmp_path: Path,
    server: PostgresServer,
    outage: str,
    kills: bool,
) -> None:
    """Two gateways in turn, agents that begin before, in and after the outage, and one gateway
    that is killed in it: each id has one conversation, its steps and all its guidance."""
    groups = [[Named(f"{at}-{n}") for n in range(_AGENTS)] for at in ("before", "in", "after")]
    before, within, after = groups
    storage = {"commit_limit_ms": 500, "probe_interval_s": 0.2, "start_wait_s": 60}
    config = {**shared(upstream, server.url("postgres"), **storage), **EAGER}
    with Fleet(tmp_path, config, 2) as fleet:
        async with balancer(lambda: fleet.ports, InTurn()) as url:
            await both_work(fleet, before, url)
            with OUTAGES[outage](server):
                await both_work(fleet, [*before, *within], url)
                if kills:
                    fleet.gateways[0].process.kill()
                    await asyncio.to_thread(fleet.gateways[0].end)
                    fleet.gateways[0].close()
                    fleet.gateways[0].lines.clear()
                await both_work(fleet, [*before, *within], url)
            if kills:
                await asyncio.to_thread(fleet.gateways[0].__enter__)
            await both_work(fleet, [*before, *within, *after], url)
            await all_ready(fleet)
            await both_work(fleet, [*before, *within, *after], url)
        await all_ready(fleet)
    agents = [*before, *within, *after]
    names = {agent.name: conversation_id(TENANT, agent.name) for agent in agents}
    assert {agent.name: agent.homes for agent in agents} == {n: {names[n]} for n in names}
    assert [line for agent in agents for line in agent.wrong] == []
    assert conversations(server) == sorted((home, "", name) for name, home in names.items())
    assert provider.places > len(agents)
    assert (provider.lost, provider.missing) == (0, {name: set() for name in names})
    calls = {(f"{names[a.name]}.0", turn) for a in agents for turn in range(len(a.identities))}
    assert recorded(server, server.url("postgres")) == calls


@pytest.mark.slow
@pytest.mark.parametrize(
    ("unseen", "quiet"), [(10, range(0)), (20, range(4, 13))], ids=["failing", "recovered"]
)
async def test_a_gateway_gives_what_the_other_gave_in_many_calls(
    upstream: ScriptedUpstream,
    provider: Provider,
    tmp_path: Path,
    server: PostgresServer,
    unseen: int,
    quiet: range,
) -> None:
    """One gateway serves more calls of an agent in an outage than a decision looks back; the other
    one decides about each of them as it was decided then, though it reads them all at once."""
    agent = Named("agent", quiet=frozenset(quiet))
    storage = {"commit_limit_ms": 500, "probe_interval_s": 0.2}
    config = {**shared(upstream, server.url("postgres"), **storage), **EAGER}
    with Fleet(tmp_path, config, 2) as fleet:
        one, other = (gateway.base_url for gateway in fleet.gateways)
        async with httpx.AsyncClient(timeout=120) as http:
            await agent.work(http, one, 1)
            await agent.work(http, other, 1)
            with OUTAGES["stopped"](server):
                await agent.work(http, one, unseen)
                await agent.work(http, other, 2)
                await agent.work(http, one, 1)
    assert agent.wrong == []
    assert provider.places > 3
    assert provider.missing["agent"] == set()


@pytest.mark.slow
async def test_another_agent_with_the_same_id_is_a_branch(
    upstream: ScriptedUpstream, provider: Provider, tmp_path: Path, server: PostgresServer
) -> None:
    """Two agents of one session begin in an outage, each at a gateway of its own: nothing of one
    is recorded as the other's, and which of them is the branch does not matter."""
    agents = [Named(name, header="x-session-id", sent="session") for name in ("one", "two")]
    storage = {"commit_limit_ms": 500, "probe_interval_s": 0.2}
    config = shared(upstream, server.url("postgres"), **storage)
    with Fleet(tmp_path, config, 2) as fleet:
        async with httpx.AsyncClient(timeout=120) as http:
            with OUTAGES["stopped"](server):
                for agent, gateway in zip(agents, fleet.gateways, strict=True):
                    await agent.work(http, gateway.base_url, _TURNS)
            await all_ready(fleet)
            for agent, gateway in zip(agents, reversed(fleet.gateways), strict=True):
                await agent.work(http, gateway.base_url, _TURNS)
        await all_ready(fleet)
    home = conversation_id(TENANT, "session")
    assert [line for agent in agents for line in agent.wrong] == []
    found = conversations(server)
    (branch,) = {name for name, *_ in found} - {home}
    assert sorted(found) == sorted([(home, "", "session"), (branch, home, "session")])
    calls = {(f"{name}.0", turn) for name in (home, branch) for turn in range(2 * _TURNS)}
    assert recorded(server, server.url("postgres")) == calls
