"""Several gateways on one PostgreSQL database, behind a balancer that knows no conversations."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from gateway.backends import open_stores
from gateway.config.storage import StorageSettings
from gateway.config.values import Secret
from gateway.features.keys.keyring import make_key
from steering_gateway_testing import AppServer, ScriptedUpstream
from steering_gateway_testing.patience import until_async
from steering_gateway_testing.recorded_agents import read_runs
from steering_gateway_testing.store_conformance.keys import kept_keys
from tests.live.test_recorded_runs import DEVELOPMENT, SAMPLE, synthetic_runs
from tests.replicas.drives import FRAME, PATIENT, bodies_through

Start = Callable[..., AppServer]


@pytest.mark.parametrize("gateways", [2, pytest.param(4, marks=pytest.mark.nightly)])
@pytest.mark.parametrize(("file", "every"), [(SAMPLE, 18), DEVELOPMENT], ids=["sample", "all"])
async def test_replicas_send_what_one_gateway_sends(
    gateway_server: Start,
    upstream: ScriptedUpstream,
    postgres_url: str,
    file: Path,
    every: int,
    gateways: int,
) -> None:
    """Two behind a round-robin balancer and four behind a random one, with retries: the same bytes
    at every call."""
    runs = [*read_runs(file)[::every], *synthetic_runs(3, 5)]
    alone = gateway_server(PATIENT)
    policy = alone.app.runtime.settings.policy()
    expected, _ = await bodies_through(upstream, runs, lambda: f"{alone.url}/v1", policy)
    guided = [body for bodies in expected.values() for body in bodies if FRAME in body]
    assert len(guided) > 20
    # What waits in the memory of one gateway is not known to another: no commit is given up here.
    storage = {"url": postgres_url, "commit_limit_ms": 60_000}
    shared = [gateway_server({**PATIENT, "storage": storage}) for _ in range(gateways)]
    draw, turns = random.Random(gateways), itertools.cycle(shared)

    def url() -> str:
        return f"{(next(turns) if gateways == 2 else draw.choice(shared)).url}/v1"

    found, _ = await bodies_through(upstream, runs, url, policy)
    different = [which for which in expected if found[which] != expected[which]]
    assert different == []


async def test_replicas_tell_each_other(
    gateway_server: Start, upstream: ScriptedUpstream, postgres_url: str, http: httpx.AsyncClient
) -> None:
    """A key revoked through one is refused by the other, and calls at one are live events at the
    other, long before either reads the store again by itself."""
    settings = {
        **PATIENT,
        "storage": {"url": postgres_url, "commit_limit_ms": 60_000},
        "auth": {"admin_key": "sk-admin-of-both-gateways-1234567890", "poll_s": 3600},
    }
    here, there = gateway_server(settings), gateway_server(settings)
    admin = {"authorization": "Bearer sk-admin-of-both-gateways-1234567890"}
    new = make_key("acme")
    operator = await open_stores(StorageSettings(url=Secret(postgres_url)))  # as a command does
    await kept_keys(operator).add_key(new.record)
    await until_async(lambda: there.app.runtime.keys.find(new.record.digest))
    body = {"model": "m", "messages": [{"role": "user", "content": "Hello."}]}
    mine = {"authorization": f"Bearer {new.text}"}
    with there.app.runtime.events.subscribe(tenant=None) as events:
        await until_async(lambda: here.app.runtime.replicas._watched_until > 0)
        answer = await http.post(f"{here.url}/v1/chat/completions", json=body, headers=mine)
        assert answer.status_code == 200
        await until_async(lambda: events._waiting)
    (event,) = events._waiting
    assert event["conversation_id"] == answer.headers["x-gateway-conversation-id"]
    runs = await http.get(f"{there.url}/api/runs", headers=admin)
    assert [run["id"] for run in runs.json()["runs"]] == [event["run_id"]]
    assert await kept_keys(operator).revoke_key(new.record.id, 1.0)
    await operator.close()
    await until_async(lambda: not there.app.runtime.keys.find(new.record.digest))
    refused = await http.post(f"{there.url}/v1/chat/completions", json=body, headers=mine)
    assert refused.status_code == 401
