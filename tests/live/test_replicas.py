"""Several gateways on one PostgreSQL database, behind a balancer that knows no conversations."""

from __future__ import annotations

import itertools
import json
import random
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.steering.transcript.frame import FRAME_OPEN
from gateway.testing import AppServer, ReceivedRequest, Reply, ScriptedUpstream
from tests.live.agents import WHICH, Drive, Run, read_runs, recorded_replies
from tests.live.client import GUIDING, RETRIED
from tests.live.test_recorded_runs import DEVELOPMENT, SAMPLE, synthetic_runs
from tests.postgres import empty_database

Start = Callable[..., AppServer]
Bodies = dict[str, list[bytes]]

# No request may be without a decision because the machine is slow.
PATIENT = {**GUIDING, "steering": {**GUIDING["steering"], "max_wait_ms": 60_000}}
FRAME = json.dumps(FRAME_OPEN)[1:-1].encode()
"""What guidance begins with, in a body."""

RETRIES = 0.05
"""Share of the calls that a client sends again, though the first attempt was served."""


@pytest.fixture
def database() -> Iterator[str]:
    """The URL of an empty database."""
    with empty_database() as url:
        yield url


class RetryingDrive(Drive):
    """Some calls are made twice, as a client's library does after an answer that got lost."""

    async def _send(
        self, client: httpx.AsyncClient, body: dict[str, Any], which: str, **headers: str
    ) -> httpx.Response:
        answer = await super()._send(client, body, which, **headers)
        if random.Random(which).random() < RETRIES:
            return await super()._send(client, body, which, **RETRIED)
        return answer


class Recorder:
    """A provider that replies as the recorded model did, and keeps what it was sent by call."""

    def __init__(self, runs: list[Run]) -> None:
        self._reply = recorded_replies(runs)
        self.bodies: Bodies = defaultdict(list)

    def __call__(self, request: ReceivedRequest) -> Reply:
        self.bodies[str(request.header(WHICH))].append(request.body)
        return self._reply(request)


async def bodies_through(
    upstream: ScriptedUpstream, runs: list[Run], choose: Callable[[], AppServer]
) -> Bodies:
    """What reaches the provider, by call, when each call goes to the gateway that is chosen.

    Every answer's readings are those of the offline fold.
    """
    upstream.default = recorder = Recorder(runs)
    upstream.requests = deque(maxlen=0)
    policy = choose().app.runtime.settings.policy()
    report = await RetryingDrive(lambda: f"{choose().url}/v1", policy=policy)(runs)
    assert report.wrong == []
    assert (report.merges, report.splits) == ([], [])
    return recorder.bodies


@pytest.mark.parametrize(("file", "every"), [(SAMPLE, 9), DEVELOPMENT], ids=["sample", "all"])
async def test_replicas_send_what_one_gateway_sends(
    gateway_server: Start, upstream: ScriptedUpstream, database: str, file: Path, every: int
) -> None:
    """Behind a round-robin and a random balancer, with retries: the same bytes at every call."""
    runs = [*read_runs(file)[::every], *synthetic_runs(3, 5)]
    alone = gateway_server(PATIENT)
    expected = await bodies_through(upstream, runs, lambda: alone)
    guided = [body for bodies in expected.values() for body in bodies if FRAME in body]
    assert len(guided) > 20
    # What waits in the memory of one gateway is not known to another: no commit is given up here.
    storage = {"url": database, "commit_limit_ms": 60_000}
    shared = [gateway_server({**PATIENT, "storage": storage}) for _ in range(2)]
    turns = itertools.cycle(shared)
    found = await bodies_through(upstream, runs, lambda: next(turns))
    different = [which for which in expected if found[which] != expected[which]]
    assert different == []
