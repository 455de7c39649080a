"""Several gateways on one PostgreSQL database, behind a balancer that knows no conversations."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.auth.keyring import make_key
from gateway.backends import open_stores
from gateway.config.storage import StorageSettings
from gateway.config.values import Secret
from gateway.steering.transcript.frame import FRAME_OPEN
from gateway.testing import AppServer, ReceivedRequest, Reply, ScriptedUpstream
from gateway.wire.prefix_hash import chain_digests
from tests.live.agents import WHICH, Drive, Run, calls_of, read_runs, recorded_replies
from tests.live.client import GUIDING, RETRIED
from tests.live.test_recorded_runs import DEVELOPMENT, SAMPLE, synthetic_runs
from tests.postgres import empty_database

Start = Callable[..., AppServer]
Bodies = dict[str, list[bytes]]

# No request may be without a decision because the machine is slow.
PATIENT = {**GUIDING, "steering": {**GUIDING["steering"], "max_wait_ms": 60_000}}
FRAME = json.dumps(FRAME_OPEN)[1:-1].encode()
"""What guidance begins with, in a body."""

PATIENCE_S = 30.0
"""Longest wait for another gateway's signal."""

RETRIES = 0.05
"""Share of the calls that a client sends again, though the first attempt was served."""


@pytest.fixture
def database() -> Iterator[str]:
    """The URL of an empty database."""
    with empty_database() as url:
        yield url


class RetryingDrive(Drive):
    """Some calls are made twice, as a client's library does after an answer that got lost.

    Runs that begin as another one does name their conversation. Without an id two of them that are
    under way at two gateways at one moment cannot be told apart before either is stored.
    """

    alike: frozenset[str] = frozenset()

    async def _send(
        self, client: httpx.AsyncClient, body: dict[str, Any], which: str, **headers: str
    ) -> httpx.Response:
        if which.partition("|")[0] in self.alike:
            headers["x-conversation-id"] = which.partition("|")[0]
        answer = await super()._send(client, body, which, **headers)
        if random.Random(which).random() < RETRIES:
            return await super()._send(client, body, which, **headers, **RETRIED)
        return answer


class Recorder:
    """A provider that replies as the recorded model did, and keeps what it was sent by call."""

    def __init__(self, runs: list[Run]) -> None:
        self._reply = recorded_replies(runs)
        self.bodies: Bodies = defaultdict(list)

    def __call__(self, request: ReceivedRequest) -> Reply:
        self.bodies[str(request.header(WHICH))].append(request.body)
        return self._reply(request)


def alike(runs: list[Run]) -> frozenset[str]:
    """The ids of the runs whose first request and first reply are those of another run, too."""
    keys = {run["id"]: chain_digests(run["messages"], "any").digests for run in runs}
    firsts = {run["id"]: keys[run["id"]][calls_of(run["messages"])[0] + 1] for run in runs}
    times = Counter(firsts.values())
    return frozenset(name for name, first in firsts.items() if times[first] > 1)


async def bodies_through(
    upstream: ScriptedUpstream, runs: list[Run], choose: Callable[[], AppServer]
) -> Bodies:
    """What reaches the provider, by call, when each call goes to the gateway that is chosen.

    Every answer's readings are those of the offline fold.
    """
    upstream.default = recorder = Recorder(runs)
    upstream.requests = deque(maxlen=0)
    policy = choose().app.runtime.settings.policy()
    drive = RetryingDrive(lambda: f"{choose().url}/v1", policy=policy)
    drive.alike = alike(runs)
    report = await drive(runs)
    assert report.wrong == []
    assert (report.merges, report.splits) == ([], [])
    return recorder.bodies


@pytest.mark.parametrize("gateways", [2, pytest.param(4, marks=pytest.mark.nightly)])
@pytest.mark.parametrize(("file", "every"), [(SAMPLE, 9), DEVELOPMENT], ids=["sample", "all"])
async def test_replicas_send_what_one_gateway_sends(
    gateway_server: Start,
    upstream: ScriptedUpstream,
    database: str,
    file: Path,
    every: int,
    gateways: int,
) -> None:
    """Two behind a round-robin balancer and four behind a random one, with retries: the same bytes
    at every call."""
    runs = [*read_runs(file)[::every], *synthetic_runs(3, 5)]
    alone = gateway_server(PATIENT)
    expected = await bodies_through(upstream, runs, lambda: alone)
    guided = [body for bodies in expected.values() for body in bodies if FRAME in body]
    assert len(guided) > 20
    # What waits in the memory of one gateway is not known to another: no commit is given up here.
    storage = {"url": database, "commit_limit_ms": 60_000}
    shared = [gateway_server({**PATIENT, "storage": storage}) for _ in range(gateways)]
    draw, turns = random.Random(gateways), itertools.cycle(shared)
    found = await bodies_through(
        upstream, runs, lambda: next(turns) if gateways == 2 else draw.choice(shared)
    )
    different = [which for which in expected if found[which] != expected[which]]
    assert different == []


async def soon(holds: Callable[[], Any]) -> None:
    """Wait until a condition holds that the other gateway's signal brings about."""
    until = time.monotonic() + PATIENCE_S
    while not holds() and time.monotonic() < until:  # noqa: ASYNC110 - it is no event of this loop
        await asyncio.sleep(0.05)
    assert holds()


async def test_replicas_tell_each_other(
    gateway_server: Start, upstream: ScriptedUpstream, database: str, http: httpx.AsyncClient
) -> None:
    """A key revoked through one is refused by the other, and calls at one are live events at the
    other, long before either reads the store again by itself."""
    settings = {
        **PATIENT,
        "storage": {"url": database, "commit_limit_ms": 60_000},
        "auth": {"admin_key": "sk-admin-of-both-gateways-1234567890", "poll_s": 3600},
    }
    here, there = gateway_server(settings), gateway_server(settings)
    admin = {"authorization": "Bearer sk-admin-of-both-gateways-1234567890"}
    new = make_key("acme")
    operator = await open_stores(StorageSettings(url=Secret(database)))  # as a command does
    await operator.keys.add_key(new.record)
    await soon(lambda: there.app.runtime.keys.has(new.record.id))
    body = {"model": "m", "messages": [{"role": "user", "content": "Hello."}]}
    mine = {"authorization": f"Bearer {new.text}"}
    with there.app.runtime.events.subscribe(tenant=None) as events:
        await soon(lambda: here.app.runtime.replicas._watched_until > 0)
        answer = await http.post(f"{here.url}/v1/chat/completions", json=body, headers=mine)
        assert answer.status_code == 200
        await soon(lambda: events._waiting)
    (event,) = events._waiting
    assert event["conversation_id"] == answer.headers["x-gateway-conversation-id"]
    runs = await http.get(f"{there.url}/api/runs", headers=admin)
    assert [run["id"] for run in runs.json()["runs"]] == [event["run_id"]]
    assert await operator.keys.revoke_key(new.record.id, 1.0)
    await operator.close()
    await soon(lambda: not there.app.runtime.keys.has(new.record.id))
    refused = await http.post(f"{there.url}/v1/chat/completions", json=body, headers=mine)
    assert refused.status_code == 401
