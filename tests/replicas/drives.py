"""Recorded runs through several gateways, and what these send to the provider."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter, defaultdict, deque
from collections.abc import Callable
from typing import Any

import httpx

from gateway.core.decision_settings import Policy
from gateway.core.guidance_text import FRAME_OPEN
from gateway.wire.prefix_hash import extend, start_state
from steering_gateway_testing import ReceivedRequest, Reply, ScriptedUpstream
from steering_gateway_testing.agents import GUIDING, RETRIED
from steering_gateway_testing.recorded_agents import WHICH, Drive, Run, calls_of, recorded_replies

Bodies = dict[str, list[bytes]]

# No request may be without a decision because the machine is slow.
PATIENT: dict[str, Any] = {**GUIDING, "steering": {**GUIDING["steering"], "max_wait_ms": 60_000}}
FRAME = json.dumps(FRAME_OPEN)[1:-1].encode()
"""What guidance begins with, in a body."""

RETRIES = 0.05
"""Share of the calls that a client sends again, though the first attempt was served."""

_ATTEMPTS = 40
_PAUSE_S = 0.25
"""Of a call whose connection broke: as often, and with such pauses, as a restart may take."""


class RetryingDrive(Drive):
    """Some calls are made twice, as a client's library does after an answer that got lost; a call
    whose connection breaks is made again.

    Runs that begin as another one does name their conversation (`alike`). Without an id two of them
    that are under way at two gateways at one moment cannot be told apart before either is stored;
    nor can, from that of another one, a first call that is made again because its gateway died.
    """

    alike: frozenset[str] = frozenset()
    broken: int = 0
    """Connections that broke."""

    cached_share: float = 0.0
    """Of what reached the provider; see `Recorder.cached_share`."""

    async def _send(
        self, client: httpx.AsyncClient, body: dict[str, Any], which: str, **headers: str
    ) -> httpx.Response:
        if which.partition("|")[0] in self.alike:
            headers["x-conversation-id"] = which.partition("|")[0]
        answer = await self._until_answered(client, body, which, **headers)
        if random.Random(which).random() < RETRIES:
            return await self._until_answered(client, body, which, **headers, **RETRIED)
        return answer

    async def _until_answered(
        self, client: httpx.AsyncClient, body: dict[str, Any], which: str, **headers: str
    ) -> httpx.Response:
        for _ in range(_ATTEMPTS):
            try:
                return await super()._send(client, body, which, **headers)
            except httpx.TransportError:
                self.broken += 1
                headers |= RETRIED
                await asyncio.sleep(_PAUSE_S)
        raise AssertionError(f"{which}: no gateway answers")


class TwinDrive(RetryingDrive):
    """Every call is made at two gateways at once, by a client that wants the faster answer."""

    twins: tuple[str, str] = ("", "")

    async def _send(
        self, client: httpx.AsyncClient, body: dict[str, Any], which: str, **headers: str
    ) -> httpx.Response:
        headers["x-conversation-id"] = which.partition("|")[0]
        headers[WHICH] = which
        self.report.requests += 1
        first, second = await asyncio.gather(
            *(
                client.post(f"{url}/chat/completions", json=body, headers=headers)
                for url in self.twins
            )
        )
        for name in ("conversation-id", "step", "state", "difficulty", "monitors"):
            here, there = (a.headers.get(f"x-gateway-{name}") for a in (first, second))
            if here != there:
                self.report.wrong.append(f"{which}: {name} is {here} at one, {there} at the other")
        return first


class Recorder:
    """A provider that replies as the recorded model did, and keeps what it was sent by call."""

    def __init__(self, runs: list[Run]) -> None:
        self._reply = recorded_replies(runs)
        self.bodies: Bodies = defaultdict(list)
        self.sent: list[tuple[str, str, bytes]] = []

    def __call__(self, request: ReceivedRequest) -> Reply:
        which = str(request.header(WHICH))
        self.bodies[which].append(request.body)
        place = request.path.split("/")[1]
        self.sent.append((which.rpartition("|")[0], place, request.body))
        return self._reply(request)

    def cached_share(self) -> float:
        """Share of the bytes that a deployment had before, in an earlier request of the run."""
        earlier: dict[tuple[str, str], list[bytes]] = defaultdict(list)
        cached = total = 0
        for run, place, body in self.sent:
            known = earlier[run, place]
            total += len(body)
            cached += max((_common(body, each) for each in known[-3:]), default=0)
            known.append(body)
        return cached / total


def _common(left: bytes, right: bytes) -> int:
    """The length of the common beginning."""
    low, high = 0, min(len(left), len(right))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if left[:middle] == right[:middle] else (low, middle - 1)
    return low


def alike(runs: list[Run], *, replies: bool) -> frozenset[str]:
    """The ids of the runs whose first request is that of another run, too; with `replies`, only if
    their first replies are the same."""
    keys = {run["id"]: extend(start_state("any"), run["messages"]).digests for run in runs}
    firsts = {run["id"]: keys[run["id"]][calls_of(run["messages"])[0] + replies] for run in runs}
    times = Counter(firsts.values())
    return frozenset(name for name, first in firsts.items() if times[first] > 1)


async def bodies_through(
    upstream: ScriptedUpstream,
    runs: list[Run],
    url: Callable[[], str],
    policy: Policy,
    *,
    kills: bool = False,
) -> tuple[Bodies, RetryingDrive]:
    """What reaches the provider, by call, when each call goes to the URL that is chosen."""
    drive = RetryingDrive(url, policy=policy)
    drive.alike = alike(runs, replies=not kills)
    return await bodies_of(upstream, runs, drive), drive


async def bodies_of(upstream: ScriptedUpstream, runs: list[Run], drive: RetryingDrive) -> Bodies:
    """What reaches the provider, by call. Every answer's readings are those of the offline fold."""
    upstream.default = recorder = Recorder(runs)
    upstream.requests = deque(maxlen=0)
    report = await drive(runs)
    drive.cached_share = recorder.cached_share()
    assert report.wrong == [], report.wrong[:5]
    assert (report.merges, report.splits) == ([], [])
    return recorder.bodies
