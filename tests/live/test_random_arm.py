"""The control arm live: drawn steps are routed and guided, and no others."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.core.guidance_settings import EtraceSettings
from gateway.core.render import FRAME_OPEN
from gateway.steering.experiments import random_switch
from steering_gateway_testing import AppServer, ScriptedUpstream
from tests.live.client import GUIDING, Agent, trace, worker

Start = Callable[..., AppServer]
Settings = dict[str, Any]
CALLS = 16  # a streak from the fifth on: `on` would act on most of them
SHARE = 0.3
UNITS = ("task-1", "task-2", "task-3")


def shares(share: float) -> dict[str, float]:
    return {"random_routing_share": share, "random_guidance_share": share}


@pytest.fixture
def settings(tmp_path: Path) -> dict[str, Any]:
    """Every unit in the control arm, with a model for hard states and all kinds of guidance."""
    return {
        **GUIDING,
        "model_routing": {"SLOW": "strong", "SKIP": "strong"},
        "experiment": {"id": "trial", "arms": {"random": 1.0}, **shares(SHARE)},
        "storage": {"path": str(tmp_path / "runs.db")},
    }


def drawn(unit: str) -> list[bool]:
    """Whether chance acts on each call; the first has no scored step before it."""
    steps = range(1, CALLS)
    return [False, *(random_switch("trial", unit, step, SHARE) for step in steps)]


def blocks(upstream: ScriptedUpstream) -> list[int]:
    """The number of guidance blocks in each request, in order."""
    return [request.body.count(FRAME_OPEN.encode()) for request in upstream.requests]


@pytest.mark.parametrize("unit", UNITS)
async def test_drawn_steps_alone_are_acted_on(
    gateway_server: Start,
    upstream: ScriptedUpstream,
    http: httpx.AsyncClient,
    settings: Settings,
    unit: str,
) -> None:
    """The draw decides model, texts, headers and record; the run decides steps and readings."""
    upstream.default = worker(CALLS)
    agent = Agent(
        http, gateway_server(settings).base_url, headers={"x-gateway-experiment-unit": unit}
    )
    answers = await agent.run(CALLS)
    wanted = drawn(unit)
    assert 0 < sum(wanted) < CALLS
    assert [r.json["model"] == "strong" for r in upstream.requests] == wanted
    # No new guidance on steps that are not drawn, and some on the first drawn one.
    counts = blocks(upstream)
    assert counts[0] == 1
    grown = [now > before for before, now in itertools.pairwise(counts)]
    assert [at for at, new in enumerate(grown, 1) if new and not wanted[at]] == []
    assert grown[wanted.index(True) - 1]
    for answer, acts in zip(answers[1:], wanted[1:], strict=True):
        assert acts or not answer.gateway("guidance")
        assert (answer.gateway("mode"), answer.gateway("arm")) == ("on", "random")
        assert answer.gateway("state") in ("NORMAL", "FAST")
    found = await trace(Path(settings["storage"]["path"]), answers[0].conversation)
    assert (found.run.mode, found.run.arm, found.run.unit) == ("on", "random", unit)
    reasons = [step.call.reasons if step.call else () for step in found.steps]
    for action in ("routing", "guidance"):
        assert [f"random: {action} drawn" in said for said in reasons] == wanted
        rested = [f"random: {action} not drawn" in said for said in reasons]
        assert rested[1:] == [not acts for acts in wanted[1:]]
    assert any(step.fired and not acts for step, acts in zip(found.steps, wanted, strict=True))


async def test_a_retry_a_restart_and_another_replica_draw_the_same(
    gateway_server: Start,
    upstream: ScriptedUpstream,
    http: httpx.AsyncClient,
    settings: Settings,
    tmp_path: Path,
) -> None:
    """The provider gets the same bytes as from one gateway that served each call once."""
    upstream.default = worker(CALLS)
    unit = {"x-gateway-experiment-unit": UNITS[0]}
    elsewhere = {**settings, "storage": {"path": str(tmp_path / "other.db")}}
    first = gateway_server(settings)
    unbroken = Agent(http, gateway_server(elsewhere).base_url, headers=unit)
    await unbroken.run(CALLS)
    wanted = [request.body for request in upstream.requests]
    agent = Agent(http, first.base_url, headers=unit)
    for call in range(CALLS):
        if call == CALLS // 3:
            await asyncio.to_thread(first.stop)
            second = gateway_server(settings)
        if call >= CALLS // 3:
            third = gateway_server(settings) if call == 2 * CALLS // 3 else None
            agent.url = (third or second).base_url
        again = await agent.send()
        assert upstream.last.body == wanted[call]
        answer = await agent.again()
        assert answer.message is not None
        agent.take(answer.message)
        assert answer.identity == "retry"
        assert answer.place == again.place
        assert upstream.last.body == wanted[call]


async def test_limits_apply_to_drawn_steps(
    gateway_server: Start, upstream: ScriptedUpstream, http: httpx.AsyncClient, settings: Settings
) -> None:
    """With every step drawn, cap, cooldown and allowances are those of any other arm."""
    upstream.default = worker(CALLS)
    limited = {
        **settings,
        "experiment": {"id": "trial", "arms": {"random": 1.0}, **shares(1.0)},
        "injection": {"monitor_cap": 2, "cooldown_steps": {"SLOW": 4}},
    }
    answers = await Agent(http, gateway_server(limited).base_url).run(CALLS)
    found = await trace(Path(settings["storage"]["path"]), answers[0].conversation)
    limits = EtraceSettings()
    texts = [row for row in found.injections if row.source == "monitor"]
    assert [row.step_index for row in texts] == [1, 5]
    allowed = {"e1": 1, "e2": limits.e2_top_k, "e3": 1}
    given = Counter(row.source for row in found.injections)
    assert {tier: given[tier] for tier in allowed if given[tier] > allowed[tier]} == {}
