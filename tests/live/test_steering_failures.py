"""When steering fails, the request goes out unchanged, once, and the failure is counted."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import httpx
import pytest

from gateway.core.fsm import next_state
from gateway.stores.protocols import StoreBusy
from steering_gateway_testing import AppServer, ScriptedUpstream
from steering_gateway_testing.agents import GUIDING, PLAIN, Agent, opening, trace, worker
from steering_gateway_testing.patience import DEADLINE_MS
from tests.examples import by_day

Start = Callable[..., AppServer]
DEADLINE_S = 2.0


class Broken(Exception):
    """Raised by the broken part."""


def broken(*_args: Any, **_kwargs: Any) -> Any:
    raise Broken("out of order")


class BrokenPart:
    """A scorer, or a suite of monitors, that cannot read its steps."""

    push = readings = broken


def slow_transition(*args: Any) -> Any:
    time.sleep(DEADLINE_S * 1.3)  # blocks the event loop
    return next_state(*args)


async def slow_look_up(*_args: Any, **_kwargs: Any) -> None:
    await asyncio.sleep(60)


# The broken attribute, its replacement, and the kind of failure that is counted.
STAGES = {
    "identity": ("gateway.conversations.resolve.identify", broken, "Broken"),
    "digests": ("gateway.conversations.resolve.read_request", broken, "Broken"),
    "match": ("gateway.conversations.resolve.match", broken, "Broken"),
    "scorer": ("gateway.core.fold.make_scorer", lambda _: BrokenPart(), "Broken"),
    "monitors": ("gateway.core.fold.make_suite", lambda _: BrokenPart(), "Broken"),
    "state machine": ("gateway.core.fold.next_state", broken, "Broken"),
    "routing": ("gateway.core.steer.choose", broken, "Broken"),
    "plan": ("gateway.core.steer.plan", broken, "Broken"),
    "decision": ("gateway.core.steer.decide", broken, "Broken"),
    "work too long": ("gateway.core.fold.next_state", slow_transition, "deadline"),
    "wait too long": (
        "gateway.conversations.steer_request.RequestSteerer._conclude",
        slow_look_up,
        "deadline",
    ),
}


async def counted(http: httpx.AsyncClient, server: AppServer, name: str, kind: str) -> float:
    """The value of a counter with one label; 0.0 when it has not counted yet."""
    text = (await http.get(f"{server.url}/metrics")).text
    found = re.search(rf'^{name}{{kind="{kind}"}} ([0-9.e+]+)$', text, re.MULTILINE)
    return float(found[1]) if found else 0.0


@pytest.mark.parametrize("stage", by_day(STAGES, 4))
async def test_a_failure_before_the_call(
    gateway_server: Start,
    upstream: ScriptedUpstream,
    http: httpx.AsyncClient,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    stage: str,
) -> None:
    """The client's own bytes go out once, the answer comes back, and the next call is steered."""
    where, instead, kind = STAGES[stage]
    upstream.default = worker(9)
    path = tmp_path / "runs.db"
    deadline_ms = DEADLINE_S * 1000 if kind == "deadline" else DEADLINE_MS
    limits = {"deadline_ms": deadline_ms, "max_wait_ms": deadline_ms}
    limits["max_conversations_in_memory"] = 1
    server = gateway_server({**PLAIN, "steering": limits, "storage": {"path": str(path)}})
    agent = Agent(http, server.base_url)
    before = (await agent.run(2))[-1]
    # Another conversation pushes it out of memory, with its working parts.
    await Agent(http, server.base_url, opening("Something else.")).turn()
    calls = len(upstream.requests)
    with monkeypatch.context() as patch:
        patch.setattr(where, instead)
        failed = await agent.turn()
    assert failed.status == 200
    assert len(upstream.requests) == calls + 1
    assert upstream.last.body == agent.sent
    assert failed.gateway("state") is None
    assert await counted(http, server, "gateway_steering_failures_total", kind) == 1
    after = await agent.turn()
    assert after.conversation == before.conversation
    assert after.gateway("step") == "3"
    assert await counted(http, server, "gateway_steering_failures_total", kind) == 1
    recorded = await trace(path, before.conversation)
    assert [step.step_index for step in recorded.steps] == [0, 1, 2, 3]
    # The scores of a step that could not be had then are filled in with the next request.
    assert [step.composite is None for step in recorded.steps] == [True, False, False, False]
    assert recorded.run.totals.scored_steps == 3


async def test_an_unsteered_call_is_not_waited_for(
    gateway_server: Start, upstream: ScriptedUpstream, http: httpx.AsyncClient
) -> None:
    """Its reply was not seen; the client may continue with a history of another form."""
    upstream.default = worker(2)
    server = gateway_server(PLAIN)
    agent = Agent(http, server.base_url, headers={"x-session-id": "s"})
    before = (await agent.run(2))[-1]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gateway.core.steer.decide", broken)
        await agent.turn()
    agent.messages = opening("The second task.")
    after = await agent.turn()
    assert after.identity == "compaction"
    assert after.conversation == before.conversation


async def test_a_look_up_that_fails_costs_the_guidance_only(
    gateway_server: Start,
    upstream: ScriptedUpstream,
    http: httpx.AsyncClient,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Scores, states and routing work when the pattern store does not answer."""
    upstream.default = worker(9)
    server = gateway_server(GUIDING)

    async def busy(*_args: Any) -> Any:
        raise StoreBusy("locked")

    library = server.app.runtime.opened.patterns.library
    monkeypatch.setattr(type(library.embedder), "embed", busy)
    answers = await Agent(http, server.base_url).run(5)
    assert [answer.gateway("step") for answer in answers] == list("01234")
    given = ",".join(answer.gateway("guidance") or "" for answer in answers)
    assert "e3:" in given
    assert "monitor:" in given
    assert "e2:" not in given
    text = (await http.get(f"{server.url}/metrics")).text
    assert re.search(r'gateway_pattern_lookup_failures_total{tier="e2"} [1-9]', text)


async def test_a_damaged_state_is_rebuilt_from_the_transcript(
    gateway_server: Start, upstream: ScriptedUpstream, http: httpx.AsyncClient, tmp_path: Path
) -> None:
    """A conversation whose row cannot be read continues with the steps of its history."""
    upstream.default = worker(9)
    path = tmp_path / "runs.db"
    settings = {**PLAIN, "storage": {"path": str(path)}}
    first = gateway_server(settings)
    agent = Agent(http, first.base_url, headers={"x-session-id": "s-1"})
    before = (await agent.run(3))[-1]
    await asyncio.to_thread(first.stop)
    with apsw.Connection(str(path)) as connection:
        connection.execute("UPDATE conversations SET state = ?", (b'{"v": 1, "guidance": [',))
    agent.url = gateway_server(settings).base_url
    after = await agent.run(2)
    assert [answer.status for answer in after] == [200, 200]
    assert {answer.conversation for answer in after} == {before.conversation}
    assert [answer.gateway("step") for answer in after] == ["3", "4"]
    recorded = await trace(path, before.conversation)
    assert [step.step_index for step in recorded.steps] == [0, 1, 2, 3, 4]
