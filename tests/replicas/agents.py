"""Agents that work while something happens to gateways or to their database, and what they got."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx

from steering_gateway_testing.fleet import Fleet
from steering_gateway_testing.patience import ANSWER_S, until_ready
from steering_gateway_testing.postgres import PostgresServer
from tests.live.test_killed import Client
from tests.replicas.run_log import recorded

_PAUSE_S = 0.1


class Agent(Client):
    """Makes a call again when its connection breaks. `apart`: while the database is away, gateways
    do not know what the others know, and a conversation without an id goes on under another one."""

    apart = False
    broken = 0

    async def work(self, http: httpx.AsyncClient, url: str) -> None:
        while True:
            self._begin()
            self.conversation = "" if self.apart else self.conversation
            try:
                await self._turn(http, url)
            except httpx.TransportError:
                self.broken += 1
                await asyncio.sleep(_PAUSE_S)


@asynccontextmanager
async def at_work(agents: list[Agent], url: str) -> AsyncIterator[None]:
    """The agents make calls meanwhile."""
    async with httpx.AsyncClient(timeout=120) as http:
        tasks = [asyncio.ensure_future(agent.work(http, url)) for agent in agents]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
    errors = [task.exception() for task in tasks if not task.cancelled()]
    assert errors == []


async def answers(agents: list[Agent], more: int) -> None:
    """Wait until the agents have received so many more."""
    before = sum(len(agent.received) for agent in agents)
    async with asyncio.timeout(ANSWER_S):
        while sum(len(agent.received) for agent in agents) < before + more:  # noqa: ASYNC110
            await asyncio.sleep(_PAUSE_S)


def check(agents: list[Agent], server: PostgresServer, url: str) -> int:
    """The number of answers that were received; each is recorded, and nothing was wrong."""
    assert [line for agent in agents for line in agent.wrong] == []
    received = {(f"{name}.0", step) for agent in agents for name, step in agent.received}
    assert received - recorded(server, url) == set()
    print(f"{len(received)} answers, {sum(agent.broken for agent in agents)} broken connections")
    return len(received)


async def all_ready(fleet: Fleet) -> None:
    """Wait until no gateway has anything that waits."""
    async with httpx.AsyncClient() as http:
        for gateway in fleet.gateways:
            await until_ready(http, gateway.url)
