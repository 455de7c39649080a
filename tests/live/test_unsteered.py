"""A call without a decision: what was injected before is sent again, and the call is recorded."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.stores.filters import RunFilter
from gateway.tasks import DeadlinePassed, OwnTime
from steering_gateway_testing import AppServer, ScriptedUpstream
from steering_gateway_testing.agents import GUIDING, Agent, Answer, opening, run_log, trace, worker

Start = Callable[..., AppServer]


@pytest.fixture
def path(upstream: ScriptedUpstream, tmp_path: Path) -> Path:
    """The database of a gateway before a model that calls its tool nine times."""
    upstream.default = worker(9)
    return tmp_path / "runs.db"


def passed(*_args: Any) -> None:
    raise DeadlinePassed


def settings(path: Path, **steering: Any) -> dict[str, Any]:
    """A gateway that gives guidance, with a store on disk."""
    return {
        **GUIDING,
        "steering": {**GUIDING["steering"], **steering},
        "storage": {"path": str(path)},
    }


async def overrun(agent: Agent) -> Answer:
    """A turn for which steering takes too long."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(OwnTime, "check", passed)
        return await agent.turn()


async def counted(http: httpx.AsyncClient, server: AppServer, reason: str, known: str) -> float:
    """The calls that went out unsteered for a reason; 0.0 when there was none."""
    text = (await http.get(f"{server.url}/metrics")).text
    labels = f'reason="{reason}",recorded="{known}"|recorded="{known}",reason="{reason}"'
    found = re.search(rf"^gateway_unsteered_calls_total{{({labels})}} ([0-9.e+]+)$", text, re.M)
    return float(found[2]) if found else 0.0


async def test_an_overrun_repeats_what_was_injected_and_is_recorded(
    gateway_server: Start, upstream: ScriptedUpstream, http: httpx.AsyncClient, path: Path
) -> None:
    """The provider sees the prefix it has in its cache; record, API, page and metric say why."""
    server = gateway_server(settings(path))
    agent = Agent(http, server.base_url)
    first = await agent.turn()
    assert "e3:" in (first.gateway("guidance") or "")
    given = upstream.last.messages
    late = await overrun(agent)
    assert upstream.last.messages[: len(given)] == given
    assert (late.status, late.conversation) == (200, first.conversation)
    assert late.gateway("unsteered") == "deadline"
    assert late.gateway("guidance") is None
    after = await agent.turn()
    assert upstream.last.messages[: len(given)] == given
    assert (after.gateway("step"), after.gateway("unsteered")) == ("2", None)
    steps = (await trace(path, first.conversation)).steps
    assert [step.call and step.call.unsteered for step in steps] == ["", "deadline", ""]
    assert steps[1].difficulty is not None  # scored all the same
    assert steps[1].call is not None
    assert steps[1].call.output_tokens
    health = (await http.get(f"{server.url}/api/health-summary")).json()
    assert (health["unsteered"], health["unrecorded_calls"]) == ({"deadline": 1}, {})
    assert await counted(http, server, "deadline", "yes") == 1
    assert "steering took too long" in (await http.get(f"{server.url}/dashboard/health")).text
    run = (await http.get(f"{server.url}/dashboard/runs/{first.conversation}.0")).text
    assert "This call went out unsteered: steering took too long." in run


async def test_an_overrun_on_the_first_call(
    gateway_server: Start, upstream: ScriptedUpstream, http: httpx.AsyncClient, path: Path
) -> None:
    """The client's own bytes go out, and the run has begun."""
    server = gateway_server(settings(path))
    agent = Agent(http, server.base_url)
    late = await overrun(agent)
    assert upstream.last.body == agent.sent
    after = await agent.turn()
    assert (after.conversation, after.gateway("step")) == (late.conversation, "1")
    steps = (await trace(path, late.conversation)).steps
    assert [step.call and step.call.unsteered for step in steps] == ["deadline", ""]


@pytest.mark.parametrize(
    "hanging",
    [
        "gateway.library.catalogue.PatternLibrary.look_up_all",
        "gateway.conversations.steer_request.RequestSteerer._read_earlier_steps",
    ],
    ids=["after scoring", "before scoring"],
)
async def test_a_wait_without_end_holds_no_request(
    gateway_server: Start,
    http: httpx.AsyncClient,
    path: Path,
    hanging: str,
) -> None:
    """After `max_wait_ms` the call goes out; it is recorded, and its steps are scored for that."""
    server = gateway_server(settings(path, max_wait_ms=500))

    async def hangs(*_args: Any, **_kwargs: Any) -> None:
        await asyncio.sleep(60)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hanging, hangs)
        agent = Agent(http, server.base_url)
        late = await agent.turn()
    assert (late.status, late.gateway("unsteered")) == (200, "timeout")
    assert await counted(http, server, "timeout", "yes") == 1
    after = await agent.turn()
    assert (after.conversation, after.gateway("step")) == (late.conversation, "1")
    steps = (await trace(path, late.conversation)).steps
    assert [step.call and step.call.unsteered for step in steps] == ["timeout", ""]


async def test_a_call_whose_conversation_is_not_found(
    gateway_server: Start, upstream: ScriptedUpstream, http: httpx.AsyncClient, tmp_path: Path
) -> None:
    """No run has it, so health counts it on its own, for operators only."""
    upstream.default = worker(9)
    keys = {"auth": {"admin_key": "admin-key-of-32-characters-here!"}}
    server = gateway_server({**settings(tmp_path / "runs.db"), **keys})

    async def broken(*_args: Any) -> Any:
        raise RuntimeError("what nobody expects")

    history = [*opening(), {"role": "assistant", "content": "Hm."}]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(server.app.runtime.store), "find_prefix_hashes", broken)
        late = await Agent(http, server.base_url, history).send()
    assert (late.status, late.gateway("unsteered")) == (200, "error")
    assert await counted(http, server, "error", "no") == 1
    admin = {"authorization": "Bearer admin-key-of-32-characters-here!"}
    everything = await http.get(f"{server.url}/api/health-summary", headers=admin)
    assert everything.json()["unrecorded_calls"] == {"error": 1}
    assert everything.json()["calls"] == 0
    query = {"tenant": "someone"}
    own = await http.get(f"{server.url}/api/health-summary", headers=admin, params=query)
    assert own.json()["unrecorded_calls"] == {}


@pytest.mark.slow
async def test_many_new_conversations_at_once(
    gateway_server: Start, http: httpx.AsyncClient, path: Path
) -> None:
    """With the default deadline all of them are recorded, and nearly all are steered."""
    server = gateway_server({"storage": {"path": str(path)}})
    agents = [Agent(http, server.base_url, opening(f"Repair module {n}.")) for n in range(160)]
    for _ in range(2):
        answers = await asyncio.gather(*(agent.turn() for agent in agents))
        assert {answer.status for answer in answers} == {200}
        steered = sum(answer.gateway("state") is not None for answer in answers)
        assert steered >= 0.95 * len(agents)
    async with run_log(path) as log:
        summary = await log.health_summary(RunFilter())
    assert summary.calls == 2 * len(agents)
    assert summary.total_runs == len(agents)
