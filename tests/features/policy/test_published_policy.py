"""A published policy on a real gateway: it follows a publish and a rollback without a restart."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import msgspec

from gateway.backends import Stores, open_stores
from gateway.config.storage import StorageSettings
from gateway.conversations.workloads import workload_of
from gateway.core.pattern import Lesson, Pattern, Status, Tier
from gateway.core.step import Action
from gateway.features.policy.policy_file import _entry, summed
from gateway.steering.evidence.failure_keys import read_action
from gateway.stores.learning import EvidenceRow, LearnedPolicy, PolicyRoute
from gateway.stores.sql.changes import Change
from steering_gateway_testing import AppServer, ScriptedUpstream
from tests.features.learning.test_loop import RESULTS, builder, play
from tests.live.incidents import until
from tests.live.test_learned_routing import settings

Start = Callable[..., AppServer]
numbers = itertools.count()


def lesson(id: str, text: str, key: str) -> Pattern:
    """An active lesson that is always given."""
    known = Lesson(key=key, status=Status.ACTIVE, share=1.0)
    fields = {"recommended_action": text}
    return Pattern(tier=Tier.E1, pattern_id=id, tenant="default", fields=fields, lesson=known)


async def publish(stores: Stores, policy: LearnedPolicy | None) -> None:
    """As the command does."""
    assert stores.changes is not None
    newest = await stores.changes.newest("policy", limit=1)
    body = msgspec.json.encode(policy).decode()
    subject = policy.digest if policy else "learned"
    change = Change(
        id=f"c{next(numbers)}", kind="policy", subject=subject, at=time.time(), body=body
    )
    assert await stores.changes.put(change, after=newest[0].id if newest else None)


async def test_a_gateway_follows(
    gateway_server: Start, upstream: ScriptedUpstream, http: httpx.AsyncClient, tmp_path: Path
) -> None:
    """It gives the lesson of the policy and not a learned one, begins runs on its model, and goes
    back to what is learned; a policy that it cannot read changes nothing."""
    upstream.default = builder
    config = settings(upstream, tmp_path) | {"learning": {"trials": "on", "interval_s": 60.0}}
    served = {"model": "openai/m", "api_base": upstream.base_url}
    config["model_list"] += [{"model_name": "m", "litellm_params": served}]
    server = gateway_server(config)
    stores = await open_stores(StorageSettings(path=str(tmp_path / "runs.db")))

    async def run() -> tuple[str, str]:
        """One run: the model of its first call, and what its second one was told."""
        before = len(upstream.requests)
        name = f"run-{next(numbers)}"
        await play(http, server.base_url, f"Task {name}.", name)
        first, second, *_ = [r.json for r in list(upstream.requests)[before:]]
        return first["model"], str(second["messages"][-1]["content"])

    arguments, result = '{"command": "mvn test"}', RESULTS["mvn test"]
    failure = read_action(Action(name="bash", arguments=arguments, observation=result)).failure
    assert failure is not None
    key = failure.key
    learned, published = lesson("e1-l", "Look first.", key), lesson("e1-p", "Wait a moment.", key)
    about: Any = {"run_id": "r", "step_index": 1, "tenant": "default", "kind": "fix"}
    about |= {"conversation": "c", "task": "t", "at": time.time(), "pattern_id": "e1-l"}
    row = EvidenceRow(**about)
    await stores.learning.learn([(learned, [row])])

    async def is_told(text: str, other: str, on: str) -> bool:
        model, told = await run()
        return text in told and other not in told and model == on

    assert await until(lambda: is_told("Look first.", "Wait", "m"))
    runs = await http.get(f"{server.url}/api/runs")
    agent = runs.json()["runs"][0]["agent"]
    names = ["bash"]  # of TOOLS
    work = workload_of("default", agent, names, "m")
    route = PolicyRoute(
        tenant="default",
        client=work.client,
        requested="m",
        workload=work.key,
        model="small",
        counts={"small": (5.0, 30.0), "m": (30.0, 2.0)},  # which alone would choose the other
    )
    policy = LearnedPolicy(
        routes=(_entry("route x", route, {}),), lessons=(_entry("lesson e1-p", published, {}),)
    )
    await publish(stores, summed(policy))
    assert await until(lambda: is_told("Wait a moment.", "Look", "small"))
    assert all([await is_told("Wait a moment.", "Look", "small") for _ in range(5)])
    applies = (await http.get(f"{server.url}/api/routing")).json()["published"]
    assert applies == summed(policy).digest
    unreadable = Change(id="x", kind="policy", subject="x", at=time.time(), body='{"form": "x"}')
    assert stores.changes is not None
    newest = await stores.changes.newest("policy", limit=1)
    assert await stores.changes.put(unreadable, after=newest[0].id)
    await asyncio.sleep(0.2)
    assert await is_told("Wait a moment.", "Look", "small")
    await publish(stores, None)
    assert await until(lambda: is_told("Look first.", "Wait", "m"))
    await stores.close()
